"""The example project, plus two test apps and a second database that no fence covers."""

from example_project.settings import *  # noqa: F403
from example_project.settings import DATABASES, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.fenced_app", "tests.shop"]

# Same server, a test database of its own; only one table is made there.
_test_name = DATABASES["default"]["TEST"]["NAME"]
DATABASES = DATABASES | {
    "other": DATABASES["default"] | {"TEST": {"NAME": f"{_test_name}_other"}},
}
DATABASE_ROUTERS = ["tests.routers.OnlyAccounts"]
