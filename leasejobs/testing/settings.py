"""The settings of the project under test, on its test databases: for a worker process.

`leasejobs.testing.WorkerProcess` names this module as DJANGO_SETTINGS_MODULE of the process it
starts. The project's own module is named in LEASEJOBS_TEST_SETTINGS; LEASEJOBS_TEST_OVERRIDES
holds, as JSON, the `DATABASES` entries that the test runner has changed, and other settings as
the test has them. Once the worker takes signals, it makes the file LEASEJOBS_TEST_READY.
"""

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from leasejobs import signals

_project = import_module(os.environ["LEASEJOBS_TEST_SETTINGS"])
_overrides: dict[str, Any] = json.loads(os.environ["LEASEJOBS_TEST_OVERRIDES"])
_databases: dict[str, Any] = _overrides.pop("DATABASES")

globals().update({name: getattr(_project, name) for name in dir(_project) if name.isupper()})
globals().update(_overrides)

DATABASES = {
    alias: {**entry, **_databases.get(alias, {})} for alias, entry in _project.DATABASES.items()
}


def _ready(event: str, **_: Any) -> None:
    # Sent by the supervisor after it has installed its signal handlers.
    if event == "worker_started":
        Path(os.environ["LEASEJOBS_TEST_READY"]).touch()


signals.worker_changed.connect(_ready, dispatch_uid="leasejobs.testing.settings")
