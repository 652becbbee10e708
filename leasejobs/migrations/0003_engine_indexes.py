"""Indexes of the engine, built without a lock on the table; may be run again if it was cut off."""

from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations, models

_JOB = "leasejobs_job"
_WITH_LOCKS = models.Q(state=2, crashes=0)
_PLAIN = models.Q(state=2, crashes=0, lock_key="")


def _concurrently(
    name: str,
    definition: str,
    state: list[migrations.operations.base.Operation],
    before: str | None = None,
    unique: str = "",
) -> migrations.RunSQL:
    """Build an index aside and then give it its name, in place of one defined as `before`."""

    def build(definition: str) -> list[str]:
        # One that was cut off is left behind, invalid: it is dropped and built anew.
        return [
            f"DROP INDEX CONCURRENTLY IF EXISTS {name}_building",
            f"CREATE {unique}INDEX CONCURRENTLY {name}_building ON {_JOB} {definition}",
            f"DROP INDEX CONCURRENTLY IF EXISTS {name}",
            f"ALTER INDEX {name}_building RENAME TO {name}",
        ]

    undo = build(before) if before else [f"DROP INDEX CONCURRENTLY IF EXISTS {name}"]
    return migrations.RunSQL(build(definition), undo, state_operations=state)


def _add(name: str, fields: list[str], condition: models.Q) -> migrations.AddIndex:
    return migrations.AddIndex("job", models.Index(fields=fields, condition=condition, name=name))


_URGENCY = ["queue", "priority", "due_at", "id"]


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("leasejobs", "0002_engine")]

    operations = [
        ValidateConstraint("job", "leasejobs_job_timeout_sane"),
        _concurrently(
            "job_claim",
            "(queue, priority, due_at, id) WHERE crashes = 0 AND lock_key = '' AND state = 2",
            [migrations.RemoveIndex("job", "job_claim"), _add("job_claim", _URGENCY, _PLAIN)],
            before="(queue, priority, due_at, id) WHERE crashes = 0 AND state = 2",
        ),
        _concurrently(
            "job_locked",
            "(queue, priority, due_at, id) WHERE crashes = 0 AND state = 2 AND lock_key <> ''",
            [_add("job_locked", _URGENCY, _WITH_LOCKS & ~models.Q(lock_key=""))],
        ),
        _concurrently(
            "job_deadline",
            "(deadline_at, id) WHERE deadline_at IS NOT NULL AND state IN (1, 2, 4)",
            [
                _add(
                    "job_deadline",
                    ["deadline_at", "id"],
                    models.Q(state__in=[1, 2, 4], deadline_at__isnull=False),
                )
            ],
        ),
        _concurrently(
            "job_dead",
            "(id) WHERE state IN (6, 7, 8)",
            [_add("job_dead", ["id"], models.Q(state__in=[6, 7, 8]))],
        ),
        _concurrently(
            "leasejobs_job_lock_held",
            "(tenant, lock_key) WHERE state = 3 AND lock_key <> ''",
            [
                migrations.AddConstraint(
                    "job",
                    models.UniqueConstraint(
                        fields=("tenant", "lock_key"),
                        name="leasejobs_job_lock_held",
                        condition=models.Q(state=3) & ~models.Q(lock_key=""),
                    ),
                )
            ],
            unique="UNIQUE ",
        ),
    ]
