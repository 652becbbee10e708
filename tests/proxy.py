"""A link to the server that can be cut at a chosen instant, or go silent without a word."""

import contextlib
import os
import re
import socket
import threading
from collections.abc import Iterator
from urllib.parse import quote, urlencode

from django.db import connection

_TIMEOUT_SECONDS = 20


class Proxy:
    """Passes sessions on between a port of loopback and the suite's server."""

    def __init__(self) -> None:
        target = connection.get_connection_params()
        host, port = target.get("host") or "localhost", int(target.get("port") or 5432)
        self._target = (host, port)
        self._user = target.get("user") or ""
        self._password = target.get("password") or ""
        self._database = target["dbname"]
        self._door = socket.create_server(("127.0.0.1", 0))
        self._links: list[_Link] = []
        self._patterns: list[bytes] = []
        self._lock = threading.Lock()
        self.was_cut = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The DATABASE_URL of the test database by way of this proxy."""
        _, port = self.address
        password = f":{quote(self._password, safe='')}" if self._password else ""
        account = f"{quote(self._user, safe='')}{password}"
        query = urlencode({"sslmode": "disable", "gssencmode": "disable"})
        return f"postgres://{account}@127.0.0.1:{port}/{quote(self._database, safe='')}?{query}"

    @property
    def address(self) -> tuple[str, int]:
        """Where to connect to."""
        host, port = self._door.getsockname()
        return host, port

    @property
    def count(self) -> int:
        """How many sessions were opened so far."""
        return len(self._links)

    def sent_count(self, pattern: bytes) -> int:
        """Count how often `pattern` was sent."""
        return sum(link.sent.count(pattern) for link in self._links)

    def cut_reply_to(self, *patterns: bytes) -> None:
        """Let the server's reply to a statement be lost, and its session with it.

        The one the last regular expression is found in, sent by a session after statements with
        the others.
        """
        with self._lock:
            self._patterns = list(patterns)

    def silence(self, pattern: bytes) -> int:
        """Pass nothing on any more for sessions that sent `pattern`; the sockets stay open."""
        silenced = [link for link in self._links if pattern in link.sent and not link.is_silent]
        for link in silenced:
            link.is_silent = True
        return len(silenced)

    def close(self) -> None:
        """End every session and the threads."""
        self._door.close()
        # A thread that waits in accept() is not woken by the close alone.
        for link in self._links:
            link.close()
        self._thread.join(_TIMEOUT_SECONDS)
        for link in self._links:
            link.join()

    def is_to_be_cut(self, link: "_Link", data: bytes) -> bool:
        """Whether the reply to `data` is the one to be lost."""
        with self._lock:
            if link.awaits < len(self._patterns) and re.search(
                self._patterns[link.awaits], data, re.DOTALL
            ):
                link.awaits += 1
                if link.awaits == len(self._patterns):
                    self._patterns = []
                    return True
        return False

    def _accept(self) -> None:
        self._door.settimeout(0.2)
        while True:
            try:
                client, _ = self._door.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            self._links.append(_Link(self, client, self._connect()))

    def _connect(self) -> socket.socket:
        host, port = self._target
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(os.path.join(host, f".s.PGSQL.{port}"))
        return server


class _Link:
    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._cuts = threading.Event()
        self.sent = b""
        self.awaits = 0
        self.is_silent = False
        self._threads = [
            threading.Thread(target=pump, name="proxy-link", daemon=True)
            for pump in (self._pump_up, self._pump_down)
        ]
        for thread in self._threads:
            thread.start()

    def _pump_up(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(1 << 16):
                if self.is_silent:
                    continue
                self.sent += data
                if self._proxy.is_to_be_cut(self, data):
                    self._cuts.set()
                self._server.sendall(data)
        self.close()

    def _pump_down(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(1 << 16):
                if self._cuts.is_set():
                    self._proxy.was_cut.set()
                    break
                if not self.is_silent:
                    self._client.sendall(data)
        self.close()

    def close(self) -> None:
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(_TIMEOUT_SECONDS)


@contextlib.contextmanager
def proxied() -> Iterator[Proxy]:
    """Yield a proxy, closed at the end."""
    proxy = Proxy()
    try:
        yield proxy
    finally:
        proxy.close()
