"""The example project's settings, with one guard of leasejobs taken out."""

from example_project.settings import *  # noqa: F403
from example_project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.market.sabotage.SabotageConfig"]
