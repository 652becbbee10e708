"""The permissions of the admin's actions, and the two kinds of dead jobs as models; no table."""

from django.db import migrations


def _proxy(name: str, verbose_name: str, verbose_name_plural: str) -> migrations.CreateModel:
    options = {
        "verbose_name": verbose_name,
        "verbose_name_plural": verbose_name_plural,
        "proxy": True,
        "default_permissions": (),
        "indexes": [],
        "constraints": [],
    }
    return migrations.CreateModel(name=name, fields=[], options=options, bases=("leasejobs.job",))


class Migration(migrations.Migration):
    dependencies = [("leasejobs", "0003_engine_indexes")]

    operations = [
        _proxy("FailedJob", "terminal failure", "terminal failures"),
        _proxy("ParkedJob", "job that needs a decision", "needs a decision"),
        migrations.AlterModelOptions(
            name="job",
            options={
                "permissions": (
                    ("cancel_job", "Can cancel jobs"),
                    ("retry_job", "Can retry jobs"),
                    ("park_job", "Can park jobs"),
                    ("pause_queue", "Can pause and resume queues"),
                    ("view_job_arguments", "Can view arguments, results and checkpoints of jobs"),
                    ("view_job_tracebacks", "Can view tracebacks of jobs"),
                ),
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
            },
        ),
    ]
