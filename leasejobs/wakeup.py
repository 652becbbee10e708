"""LISTEN/NOTIFY as an accelerator: tell idle workers at once. Polling is the guarantee.

A notification is sent after the commit of an enqueue and never inside the transaction, where it
would take a lock that serialises the commits of the whole cluster (16.0k to 7.6k a second with
8 writers). At most one per queue, process and `THROTTLE_SECONDS` is sent, so the last of a burst
may be swallowed: after a wake-up a worker claims once more an interval later.
"""

import logging
import selectors
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import psycopg
from django.db import Error, connections
from django.dispatch import receiver

from leasejobs import conf, signals
from leasejobs.models import Job
from leasejobs.policy import Backoff
from leasejobs.redaction import say
from leasejobs.sessions import after_commit

CHANNEL: Final = "leasejobs"
THROTTLE_SECONDS: Final = 0.005
_READ_SECONDS: Final = 1.0
# A server that has said nothing for so long is asked, and has so long to answer.
_SILENCE_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 5.0
_LANE: Final = "lane"
_RECONNECT: Final = Backoff(timedelta(seconds=0.1), timedelta(seconds=5))

_sent: dict[str, tuple[float, int]] = {}


@receiver(signals.jobs_claimable, sender=Job, dispatch_uid="leasejobs.wakeup")
def notify(alias: str, queues: Mapping[str, int], **_: Any) -> None:
    """Notify workers of `queues`, a map of queue to its most urgent (smallest) priority.

    A more urgent priority than the last one sent passes the throttle.
    """
    now = time.monotonic()
    chosen = []
    for queue, priority in queues.items():
        sent_at, sent_priority = _sent.get(queue, (0.0, 0))
        if now - sent_at >= THROTTLE_SECONDS or priority < sent_priority:
            _sent[queue] = now, priority
            chosen.append(f"{priority}:{queue}")
    if chosen:
        with connections[alias].cursor() as cursor:
            cursor.execute(
                "SELECT pg_notify(%s, payload) FROM unnest(%s::text[]) AS payload",
                [CHANNEL, chosen],
            )


def notify_lane(name: str, alias: str) -> None:
    """Notify workers, once the current transaction has committed, that a lane has something due."""

    def send() -> None:
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, f"{_LANE}:{name}"])

    after_commit(send, alias)


@dataclass(frozen=True, slots=True)
class Wake:
    """What a notification says: a queue and the priority of its most urgent row, or a lane."""

    queue: str | None = None
    priority: int = 0
    lane: str | None = None

    @classmethod
    def parse(cls, payload: str) -> "Wake":
        """Read a payload; one that somebody else sent on our channel says nothing in particular."""
        head, _, name = payload.partition(":")
        if head == _LANE:
            return cls(lane=name)
        try:
            return cls(name, int(head))
        except ValueError:
            return cls()


class Listener(threading.Thread):
    """Calls `wake(Wake)` for each notification, and with an empty one after each (re)connection.

    LISTEN first, then one poll: a job committed in between is found by either. Losing the
    connection is survived with backoff; meanwhile workers poll.
    """

    def __init__(self, wake: Callable[[Wake], None]) -> None:
        super().__init__(name="leasejobs-listener", daemon=True)
        self._wake = wake
        self._stopping = threading.Event()
        self.is_connected = False

    def run(self) -> None:
        """Listen until stopped."""
        failures = 0
        while not self._stopping.is_set():
            # A connection of its own, in autocommit and never in a transaction: one that sat in
            # a transaction would fill the server's notification queue.
            connection = connections.create_connection(conf.listen_database())
            try:
                connection.ensure_connection()
                connection.connection.execute(f"LISTEN {CHANNEL}")
                failures, self.is_connected = 0, True
                _tell("listener_connected", logging.DEBUG)
                self._wake(Wake())
                self._listen(connection.connection)
            except (Error, psycopg.Error) as error:
                failures += 1
                retry = _RECONNECT.delay(failures, 0).total_seconds()
                _tell("listener_lost", logging.WARNING, reason=say(error), retry_seconds=retry)
            finally:
                self.is_connected = False
                connection.close()
            self._stopping.wait(_RECONNECT.delay(failures, 0).total_seconds() if failures else 0)

    def stop(self) -> None:
        """Ask the thread to end; it does within seconds."""
        self._stopping.set()

    def _listen(self, raw: Any) -> None:
        heard_at = time.monotonic()
        while not self._stopping.is_set():
            for notification in raw.notifies(timeout=_READ_SECONDS):
                heard_at = time.monotonic()
                self._wake(Wake.parse(notification.payload))
            if time.monotonic() - heard_at >= _SILENCE_SECONDS:
                self._expect_answer(raw.pgconn)
                heard_at = time.monotonic()

    def _expect_answer(self, pgconn: Any) -> None:
        """Raise if the server does not answer: a link can be cut without a word to this end."""
        # As good a question as any; the session goes on showing what it is for.
        pgconn.send_query(f"LISTEN {CHANNEL}".encode())
        pgconn.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(pgconn.socket, selectors.EVENT_READ)
            while pgconn.is_busy():
                if not selector.select(_ANSWER_SECONDS):
                    raise psycopg.OperationalError("the server does not answer")
                pgconn.consume_input()
        while pgconn.get_result() is not None:
            pass
        while (notification := pgconn.notifies()) is not None:  # that came with the answer
            self._wake(Wake.parse(notification.extra.decode(errors="replace")))


def _tell(event: str, level: int, **fields: object) -> None:
    signals.worker_changed.send_robust(sender=Listener, event=event, level=level, fields=fields)
