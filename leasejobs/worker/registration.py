"""A supervisor's row in `Worker`: for people to see; nothing is decided by it."""

import contextlib
import os
import socket
import time
from datetime import timedelta
from typing import Final

from django.db import Error, connections
from django.db.models.functions import Now

import leasejobs
from leasejobs import conf
from leasejobs.models import Worker
from leasejobs.policy import Backoff
from leasejobs.worker.options import Options

_REPORT_SECONDS: Final = 10.0
_RETRY: Final = Backoff(timedelta(seconds=1), timedelta(seconds=30), jitter=0)


class Registration:
    """Reports a worker while it runs and withdraws it when it ends in order."""

    def __init__(self, name: str, options: Options) -> None:
        self._name = name
        self._values = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": leasejobs.__version__,
            "processes": options.processes,
            "threads": options.threads,
            "queues": list(options.queues),
        }
        self._report_at = 0.0
        self._failures = 0

    def report(self) -> None:
        """Say that the worker is there, each ten seconds; a database that is away is no matter."""
        if time.monotonic() < self._report_at:
            return
        try:
            Worker.objects.using(conf.database()).update_or_create(
                name=self._name, defaults={"seen_at": Now(), **self._values}
            )
            self._failures, pause = 0, _REPORT_SECONDS
        except Error:
            connections.close_all()
            self._failures += 1
            pause = _RETRY.delay(self._failures, 0).total_seconds()
        self._report_at = time.monotonic() + pause

    def withdraw(self) -> None:
        """Remove the row."""
        with contextlib.suppress(Error):
            Worker.objects.using(conf.database()).filter(name=self._name).delete()
