"""The suite's settings with an app whose module `ticks` has a schedule of every second."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.worker"]
LEASEJOBS = {"TASK_MODULES": ("ticks",)}
