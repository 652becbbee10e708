"""What a supervisor answers on `--metrics-port`: /healthz, /readyz and /metrics.

No other process of ours opens a port. Binding comes before any work, so that a port in use is an
error at the start; a scrape never waits long for the database.
"""

import errno
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from leasejobs.worker.merging import DIRECTORY_VARIABLE, Merged
from leasejobs.worker.sampling import PING_KEEP_SECONDS, Asked, DatabaseGauges, Sample, ping, sample

STUCK_SECONDS: Final = 60.0
_REQUEST_SECONDS: Final = 5.0
_NO_SUCH_FAMILY: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

Respond = Callable[[str, list[tuple[str, str]]], Any]


@dataclass(frozen=True, slots=True)
class Probes:
    """What the answers are made of. Instants are seconds of `time.monotonic()`, 0 for never."""

    turned_at: Callable[[], float]  # the supervisor's loop
    rounds_at: Callable[[], Sequence[float]]  # the last good round of each child that should be
    patience: float  # how old such a round may be
    answers: Callable[[], bool | None]  # whether the database does
    stuck: float = STUCK_SECONDS

    def sickness(self) -> str:
        """Say why this worker should be restarted; "" if it is alive."""
        still = time.monotonic() - self.turned_at()
        return f"the supervisor has not turned for {still:.0f} s" if still > self.stuck else ""

    def unreadiness(self) -> str:
        """Say why this worker does not work; "" if it does."""
        rounds = self.rounds_at()
        if not rounds:
            return "no child is at work"
        since = time.monotonic() - self.patience
        if late := sum(at < since for at in rounds):
            return f"{late} of {len(rounds)} children had no good round in {self.patience:.0f} s"
        return "" if self.answers() else "the database does not answer"


class Monitor:
    """A port and what is told on it. Made before the children, closed after them.

    Raises OSError where the port cannot be had; 0 takes a free one.
    """

    def __init__(self, port: int, sample: Callable[[], Sample] = sample) -> None:
        self._server = _listen(port, self._answer)
        self.port: int = self._server.server_port
        self._merged = Merged()
        self._probes: Probes | None = None
        registry = CollectorRegistry()
        registry.register(self._merged)
        registry.register(DatabaseGauges(Asked(sample)))
        self._metrics = make_wsgi_app(registry)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1},
            name="leasejobs-health", daemon=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(
        self,
        turned_at: Callable[[], float],
        rounds_at: Callable[[], Sequence[float]],
        patience: float,
    ) -> None:
        """Begin to answer, from a thread; what the callables return must be quick to have."""
        answers = Asked(ping, keep=PING_KEEP_SECONDS)
        self._probes = Probes(turned_at, rounds_at, patience, answers.get)
        self._thread.start()

    def child_environment(self, holder: str) -> dict[str, str]:
        """Return what a child must find in its environment to be counted."""
        return {DIRECTORY_VARIABLE: str(self._merged.add_child(holder))}

    def bury(self, holder: str) -> None:
        """Keep the counts of a child that is dead."""
        self._merged.bury(holder)

    def close(self) -> None:
        """Give the port back and remove what children left."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self._merged.close()

    def _answer(self, environ: Mapping[str, Any], respond: Respond) -> Iterable[bytes]:
        assert self._probes is not None
        match environ["PATH_INFO"]:
            case "/metrics":
                answer: Iterable[bytes] = self._metrics(environ, respond)
                return answer
            case "/healthz":
                problem = self._probes.sickness()
            case "/readyz":
                problem = self._probes.unreadiness()
            case _:
                return _say(respond, HTTPStatus.NOT_FOUND, "/healthz, /readyz or /metrics")
        if problem:
            return _say(respond, HTTPStatus.SERVICE_UNAVAILABLE, problem)
        return _say(respond, HTTPStatus.OK, "ok")


def _say(respond: Respond, status: HTTPStatus, text: str) -> list[bytes]:
    body = f"{text}\n".encode()
    respond(
        f"{status.value} {status.phrase}",
        [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))],
    )
    return [body]


def _listen(port: int, application: Any) -> "_Server":
    """Listen on every address, by IPv6 and IPv4 where the host has both."""
    if socket.has_dualstack_ipv6():
        try:
            return _Server(socket.AF_INET6, ("::", port), application)
        except OSError as error:
            if error.errno not in _NO_SUCH_FAMILY:
                raise
    return _Server(socket.AF_INET, ("0.0.0.0", port), application)


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_SECONDS  # of a client that says nothing

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Log nothing: a scrape is no event."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_port = False  # Python 3.14 would let two workers share one

    def __init__(self, family: int, address: tuple[str, int], application: Any) -> None:
        self.address_family = family
        super().__init__(address, _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)  # not HTTPServer's: it asks the DNS for the host's name
        self.server_name, self.server_port = "localhost", self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Let a client go that hung up."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)
