"""The suite's settings, and the soak's tasks found at start as an app's are."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.soak"]
LEASEJOBS = {"LEASE_SECONDS": 3, "SHUTDOWN_SECONDS": 4, "MAX_INTERRUPTIONS": 5}
