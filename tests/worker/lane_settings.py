"""The suite's settings with an app that registers lanes."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.worker.lane_app.LaneApp"]
