"""The engine's columns and tables; new columns have no rewrite and no scan. See also 0003."""

import django.db.models.functions.datetime
from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models

import leasejobs.policy


class Migration(migrations.Migration):
    dependencies = [
        ("leasejobs", "0001_initial"),
    ]

    operations = [
        # Behind a long reader it gives up rather than hold up everybody who comes after it.
        migrations.RunSQL("SET LOCAL lock_timeout = '5s'", migrations.RunSQL.noop),
        migrations.CreateModel(
            name="OperatorAction",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("verb", models.TextField()),
                ("target", models.TextField(help_text="The model's label.")),
                ("target_pk", models.TextField()),
                (
                    "revision",
                    models.IntegerField(help_text="The one the operator had seen.", null=True),
                ),
                ("actor", models.TextField()),
                ("reason", models.TextField()),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "verbose_name": "operator action",
                "verbose_name_plural": "operator actions",
            },
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("paused_at", models.DateTimeField(editable=False, null=True)),
            ],
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                (
                    "last_slot",
                    models.DateTimeField(help_text="The newest instant that was dealt with."),
                ),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("host", models.TextField()),
                ("pid", models.IntegerField()),
                ("version", models.TextField()),
                ("processes", models.IntegerField()),
                ("threads", models.IntegerField()),
                ("queues", models.JSONField(help_text="Empty: all.")),
                (
                    "started_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                (
                    "seen_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
            },
        ),
        migrations.AddField(
            model_name="job",
            name="cancel_requested_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="correlation_id",
            field=models.TextField(blank=True, db_default="", default="", editable=False),
        ),
        migrations.AddField(
            model_name="job",
            name="deadline_at",
            field=models.DateTimeField(
                editable=False, help_text="Not started after it: cancelled as expired.", null=True
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="lock_key",
            field=models.TextField(
                blank=True,
                db_default="",
                default="",
                editable=False,
                help_text="At most one job of a tenant with this key runs at a time.",
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="metadata",
            field=models.JSONField(
                decoder=leasejobs.policy.LenientDecoder, editable=False, null=True
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="on_dead",
            field=models.JSONField(
                decoder=leasejobs.policy.LenientDecoder,
                editable=False,
                help_text="The task to enqueue if this job fails or is parked, with its own policy.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="parent_id",
            field=models.BigIntegerField(
                editable=False, help_text="The job that enqueued this one.", null=True
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="timeout_seconds",
            field=models.FloatField(editable=False, null=True),
        ),
        migrations.AlterField(
            model_name="attempt",
            name="late_outcome",
            field=models.TextField(
                blank=True,
                choices=[
                    ("succeeded", "succeeded"),
                    ("failed", "failed"),
                    ("timed_out", "timed out"),
                    ("lost", "lost"),
                    ("released", "released"),
                    ("interrupted", "interrupted"),
                    ("snoozed", "snoozed"),
                    ("continued", "continued"),
                    ("cancelled", "cancelled"),
                    ("parked", "parked"),
                ],
                db_default="",
                default="",
                help_text="What the holder reported after it had lost the row; refused.",
            ),
        ),
        migrations.AlterField(
            model_name="attempt",
            name="outcome",
            field=models.TextField(
                choices=[
                    ("succeeded", "succeeded"),
                    ("failed", "failed"),
                    ("timed_out", "timed out"),
                    ("lost", "lost"),
                    ("released", "released"),
                    ("interrupted", "interrupted"),
                    ("snoozed", "snoozed"),
                    ("continued", "continued"),
                    ("cancelled", "cancelled"),
                    ("parked", "parked"),
                ]
            ),
        ),
        AddConstraintNotValid(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("timeout_seconds__isnull", True),
                    models.Q(("timeout_seconds__gt", 0), ("timeout_seconds__lte", 31622400)),
                    _connector="OR",
                ),
                name="leasejobs_job_timeout_sane",
            ),
        ),
        migrations.AddIndex(
            model_name="operatoraction",
            index=models.Index(fields=["target", "target_pk", "id"], name="operator_target"),
        ),
        migrations.RunSQL(migrations.RunSQL.noop, "SET LOCAL lock_timeout = '5s'"),
    ]
