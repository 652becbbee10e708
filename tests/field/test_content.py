"""What is in a job: secrets, large ids, and who hears of its end."""

import json
import re
from dataclasses import replace
from datetime import timedelta

import pytest
from django.apps import apps
from django.db import connection
from django.test import Client

from leasejobs import enqueue_many
from leasejobs.models import Job
from leasejobs.states import State
from tests import tasks as plain
from tests.field import tasks
from tests.worker.fleet import outcomes, until, until_all, until_state

JOB = "UPDATE leasejobs_job SET args = %s::jsonb WHERE id = %s"


@pytest.mark.field_case("B011")
def test_secrets_of_an_exception_are_neither_in_the_database_nor_in_the_logs(fleet):
    worker = fleet.start("--threads=1", LOG_LEVEL="DEBUG")

    job_id = tasks.fail_with_secrets.enqueue("SEKRET7argument").job_id
    until_state(job_id, State.FAILED)
    until(lambda: "job_failed" in worker.output())

    stored = dump()
    leaked = [stored[at.start() - 40 : at.end() + 20] for at in re.finditer("SEKRET[^7]", stored)]
    assert leaked == []
    assert stored.count("SEKRET7argument") == 1  # which the job needs
    assert "ConnectionError" in stored
    assert "example.test" in stored
    assert "SEKRET" not in worker.output()


def dump() -> str:
    """Return every row of every table of ours as text."""
    lines = []
    tables = {model._meta.db_table for model in apps.get_app_config("leasejobs").get_models()}
    with connection.cursor() as cursor:
        for table in sorted(tables):
            cursor.execute(f'SELECT t::text FROM "{table}" AS t')
            lines += [row[0] for row in cursor.fetchall()]
    return "\n".join(lines)


ON_DEAD = json.dumps(
    {"task": tasks.hear_of_the_dead.module_path, "queue": "heard", "max_attempts": 8,
     "max_crashes": 3, "on_crash": "retry", "backoff": {"base": 0, "cap": 0, "jitter": 0}}
)  # fmt: skip


@pytest.mark.crash
@pytest.mark.field_case("B020")
def test_death_by_any_path_is_heard_of_once(fleet):
    worker = fleet.start("--lease=60", "--threads=1", "--queues=default,heard")

    def doomed(how, **more):
        return replace(tasks.die_somehow.prepare(how), on_dead=ON_DEAD, **more)

    found = enqueue_many(
        [
            doomed("raise"),
            doomed("discard"),
            doomed("kill"),
            doomed("sleep", timeout_seconds=0.1, max_crashes=1),
            doomed("kill", on_crash="park"),
            doomed("raise", task="tests.field.tasks.die_somehow", max_attempts=1,
                   delay=timedelta(hours=1)),
        ]
    )  # fmt: skip
    unreadable = found[-1].job_id
    with connection.cursor() as cursor:
        cursor.execute(JOB, ["[1e5000]", unreadable])
    Job.objects.filter(pk=unreadable).update(state=State.PENDING)
    ids = [item.job_id for item in found]
    until(
        lambda: Job.objects.filter(pk__in=ids, state__in=[State.FAILED, State.PARKED]).count() == 6
    )
    until(lambda: not _heard().exclude(state=State.SUCCEEDED).exists())

    heard = sorted((job.kwargs["job_id"], job.kwargs["reason"]) for job in _heard())
    reasons = ["task_raised", "unwanted", "crashed", "timed_out", "crashed", "unreadable"]
    assert heard == list(zip(ids, reasons, strict=True))
    assert {job.parent_id for job in _heard()} == set(ids)
    assert worker.children()


def _heard():
    return Job.objects.filter(task=tasks.hear_of_the_dead.module_path)


@pytest.mark.field_case("B124")
def test_ids_beyond_32_bits_are_enqueued_run_and_shown(fleet, admin_client: Client):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT setval(pg_get_serial_sequence('leasejobs_job', 'id'), %s),"
            " setval(pg_get_serial_sequence('leasejobs_attempt', 'id'), %s)",
            [2**31 - 3, 2**31 - 3],
        )

    found = enqueue_many([plain.noop.using(key=f"k{n}").prepare() for n in range(10)])
    again = enqueue_many([plain.noop.using(key=f"k{n}").prepare() for n in range(10)])
    fleet.start("--threads=2")
    until_all(State.SUCCEEDED)

    ids = [item.job_id for item in found]
    assert max(ids) > 2**31
    assert [(item.job_id, item.created) for item in again] == [(pk, False) for pk in ids]
    assert [outcomes(pk) for pk in ids] == [["succeeded"]] * 10
    page = admin_client.get(f"/admin/leasejobs/job/{max(ids)}/change/")
    assert page.status_code == 200
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sequencename FROM pg_sequences WHERE data_type <> 'bigint'::regtype"
            " AND sequencename LIKE 'leasejobs%%'"
        )
        assert cursor.fetchall() == []
