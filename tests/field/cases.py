"""Failures seen in the field with other queues, each shown by a test not to happen here.

`@pytest.mark.field_case("B002")` marks the test; `test_cases.py` holds the two together. Where a
case also needs a long run or a measurement, `soak` says which part is left to that; `waits_for`
names what has to be there before the case can be tested at all.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One failure: what must not happen, and what the suite's tests leave out."""

    summary: str
    soak: str = ""
    waits_for: str = ""


CASES: dict[str, Case] = {
    "B002": Case("content PostgreSQL cannot store keeps an outcome from being written"),
    "B003": Case("a stalled run finishes the row of its successor in the same worker"),
    "B007": Case(
        "the admin's list counts, scans or reads wide columns of a big table",
        soak="page times with three million rows",
    ),
    "B008": Case("the listening connection dies and wake-ups are lost until a restart"),
    "B011": Case("secrets reach stored errors or logs"),
    "B013": Case("an old worker drops the tasks of a newer version"),
    "B019": Case("a port in use keeps a worker from starting"),
    "B020": Case("nobody is told of a job that died otherwise than in its handler"),
    "B023": Case("recovery overwrites a job that was completed after it looked"),
    "B024": Case(
        "a migration locks a big table, or leaves an invalid index",
        soak="migrating two million rows under load",
    ),
    "B025": Case("backoff overflows at high numbers of attempts"),
    "B027": Case(
        "gauges count the whole table at every scrape",
        soak="scrapes over five million rows",
    ),
    "B032": Case("a worker's wrong clock makes it steal, abort or delay jobs"),
    "B033": Case("a session left dirty by a task spoils its outcome or the next job"),
    "B034": Case("bulk writers deadlock with each other"),
    "B035": Case("a connection cut while idle costs a job its attempt"),
    "B037": Case("a worker's metrics show one child or none"),
    "B038": Case("clearing context variables wipes those of the process"),
    "B039": Case("a worker stays glued to a server that became read-only"),
    "B040": Case("an upsert lets an older version of a cell win", waits_for="repair cells"),
    "B041": Case("rows that cannot be rescued starve those behind them"),
    "B042": Case("a change of the clock skips or doubles a periodic run"),
    "B054": Case("a second signal leaves rows leased"),
    "B059": Case(
        "dead entries under a long snapshot slow every claim down",
        soak="ten minutes at 200 jobs a second under a held snapshot",
    ),
    "B063": Case("threads leak connections"),
    "B065": Case(
        "busy task threads starve the heartbeat",
        soak="code that keeps the interpreter's lock longer than a lease starves it still: its"
        " row is taken over, and its fenced writes and outcome are refused",
    ),
    "B070": Case("one duplicate fails a whole bulk enqueue"),
    "B072": Case(
        "the claim's plan flips with the statistics",
        soak="the same shapes with millions of rows",
    ),
    "B078": Case("what cannot be serialised hides the error or kills the worker"),
    "B079": Case(
        "sessions are shared across a fork",
        soak="over TLS, which the suite's server has not",
    ),
    "B080": Case(
        "notifying inside the transaction serialises the commits of the cluster",
        soak="transactions a second of 64 writers",
    ),
    "B081": Case("one tenant's backlog delays every other"),
    "B083": Case("reclaiming a slow job refunds its attempt, so it runs for ever"),
    "B085": Case("progress goes backwards after a redelivery"),
    "B088": Case("a restarted worker of the same name keeps its predecessor's leases alive"),
    "B092": Case("one bad row stops the recovery of the others"),
    "B096": Case("a job enqueued while a worker goes to sleep waits for the poll"),
    "B097": Case("gauges count rows whose lease is dead"),
    "B105": Case("enqueueing the key of a running job runs it twice at once"),
    "B106": Case("a listener in a transaction fills the notification queue"),
    "B107": Case("as PID 1 a worker gets no signals or leaves zombies"),
    "B109": Case("two schedulers fire one slot twice"),
    "B110": Case("a run failed by force while it lives can never come back"),
    "B111": Case("the caller of a duplicate does not learn which job exists"),
    "B114": Case("a job that waits reserves its lock key"),
    "B116": Case("pruning the registry of workers hides a dead one's jobs"),
    "B118": Case("an extension by the task itself does not move the local deadline"),
    "B122": Case("an argument that is no JSON fails late or changes its type"),
    "B123": Case("a starting worker resets the running jobs of others"),
    "B124": Case("a 32-bit sequence runs out"),
}
