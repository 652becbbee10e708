import datetime

import django.db.models.deletion
from django.db import migrations, models

import leasejobs.policy


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Job",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("epoch", models.BigIntegerField(db_default=0, default=0, editable=False)),
                ("lease_token", models.UUIDField(editable=False, null=True)),
                (
                    "leased_by",
                    models.TextField(blank=True, db_default="", default="", editable=False),
                ),
                ("lease_expires_at", models.DateTimeField(editable=False, null=True)),
                ("task", models.TextField(editable=False)),
                ("queue", models.TextField(editable=False)),
                (
                    "priority",
                    models.SmallIntegerField(
                        editable=False, help_text="Negated: smaller is first."
                    ),
                ),
                ("tenant", models.TextField(blank=True, db_default="", default="", editable=False)),
                ("args", models.JSONField(default=list, editable=False)),
                ("kwargs", models.JSONField(default=dict, editable=False)),
                ("key", models.TextField(blank=True, db_default="", default="", editable=False)),
                (
                    "key_scope",
                    models.TextField(
                        choices=[
                            ("always", "while the row is kept"),
                            ("live", "until the job is terminal"),
                            ("queued", "until the job is first claimed"),
                        ],
                        db_default="always",
                        default="always",
                        editable=False,
                    ),
                ),
                (
                    "state",
                    models.SmallIntegerField(
                        choices=[
                            (1, "scheduled"),
                            (2, "pending"),
                            (3, "running"),
                            (4, "retryable"),
                            (5, "succeeded"),
                            (6, "failed"),
                            (7, "cancelled"),
                            (8, "parked"),
                        ],
                        editable=False,
                    ),
                ),
                ("due_at", models.DateTimeField(editable=False)),
                ("created_at", models.DateTimeField(editable=False)),
                ("claimed_at", models.DateTimeField(editable=False, null=True)),
                (
                    "started_at",
                    models.DateTimeField(
                        editable=False, help_text="The first claim; never cleared.", null=True
                    ),
                ),
                ("finished_at", models.DateTimeField(editable=False, null=True)),
                (
                    "revision",
                    models.IntegerField(
                        db_default=0,
                        default=0,
                        editable=False,
                        help_text="Up by one at every move but claim.",
                    ),
                ),
                ("attempts", models.IntegerField(db_default=0, default=0, editable=False)),
                ("max_attempts", models.IntegerField(editable=False)),
                ("crashes", models.IntegerField(db_default=0, default=0, editable=False)),
                ("max_crashes", models.IntegerField(editable=False)),
                ("interruptions", models.IntegerField(db_default=0, default=0, editable=False)),
                (
                    "on_crash",
                    models.TextField(
                        choices=[("retry", "retry"), ("park", "park")],
                        default="retry",
                        editable=False,
                    ),
                ),
                (
                    "backoff",
                    models.JSONField(
                        decoder=leasejobs.policy.LenientDecoder, default=dict, editable=False
                    ),
                ),
                ("checkpoint", models.JSONField(editable=False, null=True)),
                ("progress_done", models.BigIntegerField(editable=False, null=True)),
                ("progress_total", models.BigIntegerField(editable=False, null=True)),
                ("result", models.JSONField(editable=False, null=True)),
                (
                    "failure_code",
                    models.TextField(blank=True, db_default="", default="", editable=False),
                ),
                (
                    "failure_detail",
                    models.TextField(blank=True, db_default="", default="", editable=False),
                ),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "abstract": False,
                "indexes": [
                    models.Index(
                        condition=models.Q(("crashes", 0), ("state", 2)),
                        fields=["queue", "priority", "due_at", "id"],
                        name="job_claim",
                    ),
                    models.Index(
                        condition=models.Q(("crashes__gt", 0), ("state", 2)),
                        fields=["queue", "priority", "due_at", "id"],
                        name="job_suspect",
                    ),
                    models.Index(
                        condition=models.Q(("state__in", [1, 4])),
                        fields=["due_at", "id"],
                        name="job_due",
                    ),
                    models.Index(
                        condition=models.Q(("state", 3)), fields=["id"], name="job_leased"
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("lease_expires_at__isnull", True),
                                ("lease_token__isnull", True),
                                ("leased_by", ""),
                            ),
                            models.Q(
                                ("lease_expires_at__isnull", False),
                                ("lease_token__isnull", False),
                                models.Q(("leased_by", ""), _negated=True),
                            ),
                            _connector="OR",
                        ),
                        name="leasejobs_job_lease_whole",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("state__in", [1, 2, 3, 4, 5, 6, 7, 8])),
                        name="leasejobs_job_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("lease_token__isnull", False), ("state", 3)),
                            models.Q(
                                models.Q(("state", 3), _negated=True), ("lease_token__isnull", True)
                            ),
                            _connector="OR",
                        ),
                        name="leasejobs_job_leased_while_running",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("attempts__range", (0, 1000000000)),
                            ("crashes__range", (0, 1000000000)),
                            ("interruptions__range", (0, 1000000000)),
                            ("revision__range", (0, 1000000000)),
                            ("max_attempts__range", (1, 1000000000)),
                            ("max_crashes__range", (1, 1000000000)),
                        ),
                        name="leasejobs_job_budgets_sane",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "due_at__range",
                                (
                                    datetime.datetime(1, 1, 2, 0, 0, tzinfo=datetime.UTC),
                                    datetime.datetime(9999, 1, 1, 0, 0, tzinfo=datetime.UTC),
                                ),
                            )
                        ),
                        name="leasejobs_job_due_at_finite",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(
                            ("key_scope", "always"), models.Q(("key", ""), _negated=True)
                        ),
                        fields=("tenant", "task", "key"),
                        name="leasejobs_job_key_always",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(
                            ("key_scope", "live"),
                            models.Q(("key", ""), _negated=True),
                            models.Q(("state__in", [5, 6, 7]), _negated=True),
                        ),
                        fields=("tenant", "task", "key"),
                        name="leasejobs_job_key_live",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(
                            ("epoch", 0),
                            ("key_scope", "queued"),
                            models.Q(("key", ""), _negated=True),
                            models.Q(("state__in", [5, 6, 7]), _negated=True),
                        ),
                        fields=("tenant", "task", "key"),
                        name="leasejobs_job_key_queued",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("epoch", models.BigIntegerField()),
                (
                    "number",
                    models.IntegerField(
                        help_text="What the attempt counted as when it was claimed."
                    ),
                ),
                ("worker", models.TextField()),
                ("claimed_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField()),
                (
                    "outcome",
                    models.TextField(
                        choices=[
                            ("succeeded", "succeeded"),
                            ("failed", "failed"),
                            ("lost", "lost"),
                            ("released", "released"),
                            ("interrupted", "interrupted"),
                            ("snoozed", "snoozed"),
                            ("continued", "continued"),
                        ]
                    ),
                ),
                ("failure_code", models.TextField(blank=True, db_default="", default="")),
                ("exception_path", models.TextField(blank=True, db_default="", default="")),
                ("detail", models.TextField(blank=True, db_default="", default="")),
                ("traceback", models.TextField(blank=True, db_default="", default="")),
                (
                    "late_outcome",
                    models.TextField(
                        blank=True,
                        choices=[
                            ("succeeded", "succeeded"),
                            ("failed", "failed"),
                            ("lost", "lost"),
                            ("released", "released"),
                            ("interrupted", "interrupted"),
                            ("snoozed", "snoozed"),
                            ("continued", "continued"),
                        ],
                        db_default="",
                        default="",
                        help_text="What the holder reported after it had lost the row; refused.",
                    ),
                ),
                ("late_at", models.DateTimeField(null=True)),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="attempt_set",
                        to="leasejobs.job",
                    ),
                ),
            ],
            options={
                "verbose_name": "attempt",
                "verbose_name_plural": "attempts",
                "constraints": [
                    models.UniqueConstraint(fields=("job", "epoch"), name="leasejobs_attempt_once")
                ],
            },
        ),
        # Rows change state twice and are pruned in bulk: room on the page keeps a row's versions
        # together, and vacuum must not wait for a fifth of a big table.
        migrations.RunSQL(
            "ALTER TABLE leasejobs_job SET (fillfactor = 85,"
            " autovacuum_vacuum_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.02,"
            " autovacuum_vacuum_insert_scale_factor = 0.05)",
            "ALTER TABLE leasejobs_job RESET (fillfactor, autovacuum_vacuum_scale_factor,"
            " autovacuum_analyze_scale_factor, autovacuum_vacuum_insert_scale_factor)",
        ),
    ]
