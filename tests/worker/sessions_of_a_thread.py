"""A thread whose connections are watched as those of a worker's child are."""

from collections.abc import Callable
from typing import TypeVar

from django.db.backends.signals import connection_created

from leasejobs.worker import sessions
from tests.two_connections import Actor

T = TypeVar("T")


def in_worker_thread(act: Callable[[], T]) -> T:
    """Run `act` in a thread of its own, with every new connection of it watched."""
    connection_created.connect(sessions._opened, dispatch_uid="tests.worker")
    try:
        actor = Actor(act)
        actor.start()
        found: T = actor.result()
        return found
    finally:
        connection_created.disconnect(sessions._opened, dispatch_uid="tests.worker")
