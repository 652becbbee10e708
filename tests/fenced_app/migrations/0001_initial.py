import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("leasejobs", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Account",
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
                ("balance", models.IntegerField(default=0)),
                ("is_open", models.BooleanField(default=True)),
            ],
            options={
                "ordering": ("id",),
                "abstract": False,
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
                        name="fenced_app_account_lease_whole",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Receipt",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("text", models.TextField()),
                (
                    "job",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, to="leasejobs.job"
                    ),
                ),
            ],
        ),
    ]
