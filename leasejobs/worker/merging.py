"""The metrics of all processes of a worker as one: its children's, its dead children's, its own.

Each child counts in files of a directory of its own (prometheus-client's multiprocess mode, which
reads its variable when it is imported). What a dead child had counted is added to a total and its
directory removed: a sum never goes down because a child was replaced.
"""

import logging
import shutil
import struct
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from prometheus_client import REGISTRY
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from leasejobs import signals
from leasejobs.redaction import say

DIRECTORY_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
# What a file may raise whose writer was killed while it made it.
_UNREADABLE: Final = (OSError, ValueError, RuntimeError, struct.error)

_Labels = tuple[tuple[str, str], ...]


class _Families:
    """Metric families by name, with samples summed by (name, labels)."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}
        self._values: dict[str, dict[tuple[str, _Labels], float]] = {}

    def add(self, families: Iterable[Metric]) -> None:
        for family in families:
            self._families.setdefault(family.name, family)
            values = self._values.setdefault(family.name, {})
            for sample in family.samples:
                # When each process began to count adds up to nothing.
                if not sample.name.endswith("_created"):
                    key = sample.name, tuple(sorted(sample.labels.items()))
                    values[key] = values.get(key, 0.0) + sample.value

    def collect(self) -> list[Metric]:
        return [self._summed(family) for family in self._families.values()]

    def _summed(self, family: Metric) -> Metric:
        summed = Metric(family.name, family.documentation, family.type)
        for (name, labels), value in self._values[family.name].items():
            summed.add_sample(name, dict(labels), value)
        return summed


class Merged(Collector):
    """A collector over the processes of one supervisor; `close` removes its directories."""

    def __init__(self) -> None:
        self._base = Path(tempfile.mkdtemp(prefix="leasejobs-metrics-"))
        self._lock = threading.Lock()
        self._live: dict[str, Path] = {}
        self._dead = _Families()

    def add_child(self, holder: str) -> Path:
        """Make the directory in which a child is to count."""
        path = Path(tempfile.mkdtemp(dir=self._base))
        with self._lock:
            self._live[holder] = path
        return path

    def bury(self, holder: str) -> None:
        """Keep what a dead child had counted, and remove its directory."""
        with self._lock:
            if (path := self._live.pop(holder, None)) is None:
                return
            try:
                counted = _read([path])
            except _UNREADABLE as error:
                fields = {"holder": holder, "reason": say(error)}
                signals.worker_changed.send_robust(
                    sender=Merged, event="metrics_lost", level=logging.WARNING, fields=fields
                )
            else:
                # A gauge tells of a process as it is.
                self._dead.add(family for family in counted if family.type != "gauge")
        shutil.rmtree(path, ignore_errors=True)

    def collect(self) -> Iterable[Metric]:
        """Yield every family of every process once."""
        whole = _Families()
        whole.add(REGISTRY.collect())
        with self._lock:
            whole.add(self._dead.collect())
            # In one go: a gauge may be the greatest of all children, or the latest.
            whole.add(_read(self._live.values()))
        return whole.collect()

    def close(self) -> None:
        """Remove every directory."""
        shutil.rmtree(self._base, ignore_errors=True)


def _read(paths: Iterable[Path]) -> list[Metric]:
    files = [
        str(file) for path in paths for file in sorted(path.glob("*.db")) if file.stat().st_size
    ]
    return list(MultiProcessCollector.merge(files))  # type: ignore[no-untyped-call]
