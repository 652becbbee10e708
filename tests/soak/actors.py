"""Who acts on the workers of a soak: a producer, an operator, and chaos."""

import contextlib
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from django.db import Error, connection, connections

from example_project.postgres.server import Server
from leasejobs import enqueue_many, operations
from leasejobs.enqueue import NewJob
from leasejobs.exceptions import LeaseJobsError
from leasejobs.models import Job
from leasejobs.operations import Verdict
from leasejobs.states import State
from tests.soak import tasks
from tests.worker.fleet import Fleet, Worker

QUEUES = ("default", "careful", "quiet")
OPTIONS = ("--processes=2", "--threads=4", "--lease=3", "--poll=0.5", "--metrics-port=0")
_WHO = {"actor": "soak", "reason": "at random"}


class Actor(threading.Thread):
    """Does something at random, again and again, until told to stop."""

    def __init__(self, seed: str, pause: tuple[float, float]) -> None:
        super().__init__(daemon=True)
        self.random = random.Random(seed)
        self.counts: dict[str, int] = defaultdict(int)
        self.failure: BaseException | None = None
        self._pause = pause
        self._stopping = threading.Event()

    def run(self) -> None:
        """Act; a database that is away is what a soak is about."""
        while not self._stopping.wait(self.random.uniform(*self._pause)):
            try:
                self.act()
            except (Error, LeaseJobsError):
                self.counts["errors"] += 1
                connections.close_all()
            except BaseException as error:
                self.failure = error
                raise
        connections.close_all()

    def act(self) -> None:
        """Do one thing."""
        raise NotImplementedError

    def stop(self) -> None:
        """End after what is under way."""
        self._stopping.set()
        self.join(60)


class Producer(Actor):
    """Enqueues all kinds of jobs. `ids` are those whose enqueue is known to have committed."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed, (0.02, 0.2))
        self.ids: list[int] = []

    def act(self) -> None:
        """Enqueue a handful of one kind."""
        name, make = self.random.choice(list(self._kinds().items()))
        found = enqueue_many([make() for _ in range(self.random.randint(1, 5))])
        self.ids += [item.job_id for item in found if item.created]
        self.counts[name] += sum(item.created for item in found)

    def _kinds(self) -> dict[str, Callable[[], NewJob]]:
        draw = self.random.random
        key = f"key {self.random.randrange(50)}"
        scope = self.random.choice(("always", "live", "queued"))
        urgent = tasks.plain.using(priority=self.random.randint(-100, 100))
        quick = tasks.plain.using(expires_after=timedelta(seconds=0.05 + draw()))
        late = timedelta(seconds=draw() * 3)
        lock, tenant = f"lock {self.random.randrange(4)}", self.random.choice(("", "acme"))
        return {
            "plain": tasks.plain.prepare,
            "slow": lambda: tasks.plain.prepare(draw() * 0.5),
            "urgent": urgent.prepare,
            "quiet": tasks.plain.using(queue_name="quiet").prepare,
            "returns": lambda: tasks.returns.prepare(1),
            "keyed": tasks.plain.using(key=key, key_scope=scope).prepare,
            "delayed": tasks.plain.using(run_after=late).prepare,
            "expiring": quick.prepare,
            "locked": lambda: tasks.locked.using(tenant=tenant).prepare(lock, draw() * 0.2),
            "fails": tasks.fails.prepare,
            "crashes": lambda: tasks.crashes.prepare(draw() < 0.5),
            "careful": tasks.careful.prepare,
            "dawdles": tasks.dawdles.prepare,
            "listens": tasks.listens.prepare,
            "snoozes": tasks.snoozes.prepare,
            "continues": tasks.continues.prepare,
            "chains": lambda: tasks.chains.prepare(3),
            "unknown": _unknown,
        }


def _unknown() -> NewJob:
    return NewJob(
        task="tests.soak.tasks.gone", queue="default", priority=0, args="[]", kwargs="{}",
        max_attempts=1, max_crashes=1, on_crash="retry", backoff="{}",
    )  # fmt: skip


class Operator(Actor):
    """Cancels, retries and parks what was enqueued lately; pauses and resumes queues.

    `last` is the last verb that moved a job; None where an answer was lost.
    """

    def __init__(self, seed: str, producer: Producer) -> None:
        super().__init__(seed, (0.05, 0.4))
        self.last: dict[int, str | None] = {}
        self._producer = producer

    def act(self) -> None:
        """Do one thing to a few jobs, or to a queue."""
        verb = self.random.choice(("cancel", "cancel", "retry", "retry", "park", "queue"))
        if verb == "queue":
            queue = self.random.choice(QUEUES)
            pause = self.random.random() < 0.3
            (operations.pause if pause else operations.resume)(queue, **_WHO)
            return
        recent = self._producer.ids[-60:]
        if self.random.random() < 0.5:  # those the verb is for
            states = [State.RUNNING] if verb == "cancel" else [State.FAILED, State.PARKED]
            wanted = Job.objects.filter(pk__in=self._producer.ids, state__in=states)
            recent = list(wanted.order_by("-pk").values_list("pk", flat=True)[:60])
        pks = self.random.sample(recent, min(len(recent), self.random.randint(1, 6)))
        self.last |= dict.fromkeys(pks)
        for pk, verdict in getattr(operations, verb)(pks, **_WHO).items():
            self.counts[f"{verb} {verdict.value}"] += 1
            if verdict is Verdict.MOVED:
                self.last[pk] = verb
            else:
                self.last.pop(pk)


class Chaos(Actor):
    """Kills and freezes processes, ends sessions, restarts the server; replaces dead workers."""

    def __init__(self, seed: str, fleet: Fleet, size: int) -> None:
        super().__init__(seed, (0.3, 2.0))
        self._fleet = fleet
        self._size = size
        self._frozen: list[tuple[psutil.Process, float]] = []
        self._kinds: dict[str, tuple[int, Callable[[], Any]]] = {
            "kill child": (6, self._kill_child),
            "kill supervisor": (2, self._kill_supervisor),
            "stop supervisor": (1, self._stop_supervisor),
            "freeze": (4, self._freeze),
            "end sessions": (4, self._end_sessions),
            "restart server": (1, self._restart_server),
            "read only": (1, self._be_read_only),
        }

    @property
    def alive(self) -> list[Worker]:
        """The supervisors that run."""
        return [worker for worker in self._fleet.workers if worker.process.poll() is None]

    def act(self) -> None:
        """See to the frozen and the dead, then do some harm."""
        self.restore(time.monotonic())
        weights = [weight for weight, _ in self._kinds.values()]
        [kind] = self.random.choices(list(self._kinds), weights)
        self.counts[kind] += 1
        with contextlib.suppress(psutil.Error):
            self._kinds[kind][1]()

    def restore(self, now: float) -> None:
        """Thaw what has been frozen until `now`; let there be as many workers as there should."""
        for pair in list(self._frozen):
            if pair[1] <= now:
                self._frozen.remove(pair)
                with contextlib.suppress(psutil.Error):
                    pair[0].resume()
        while len(self.alive) < self._size:
            more = ("--max-jobs=50",) if self.random.random() < 0.3 else ()
            self._fleet.start(*OPTIONS, *more)

    def _some_child(self) -> psutil.Process:
        children = [child for worker in self.alive for child in worker.children()]
        if not children:
            raise psutil.Error
        return self.random.choice(children)

    def _kill_child(self) -> None:
        self._some_child().kill()

    def _kill_supervisor(self) -> None:
        self.random.choice(self.alive).kill()

    def _stop_supervisor(self) -> None:
        # Before it has children it may not have come to handle signals.
        for worker in self.random.sample(self.alive, len(self.alive)):
            if worker.children():
                worker.signal(signal.SIGTERM)
                return

    def _freeze(self) -> None:
        """Past the lease, as a rule; a supervisor now and then."""
        process = self._some_child()
        if self.random.random() < 0.2:
            process = psutil.Process(self.random.choice(self.alive).pid)
        process.suspend()
        self._frozen.append((process, time.monotonic() + self.random.uniform(0.5, 8)))

    def _end_sessions(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.3"
            )

    def _restart_server(self) -> None:
        server = Server()
        server.stop()
        time.sleep(self.random.uniform(0, 3))
        server.start()

    def _be_read_only(self) -> None:
        name = connection.settings_dict["NAME"]
        with connection.cursor() as cursor:
            cursor.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        try:
            self._end_sessions()
            time.sleep(self.random.uniform(0.5, 5))
        finally:
            make_writable(name)
        self._end_sessions()


def make_writable(name: str) -> None:
    """Undo what read-only chaos did, however it ended."""
    connections.close_all()
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = off")
        cursor.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')


def server_log() -> Path:
    """Return where the embedded server writes."""
    return Server().log
