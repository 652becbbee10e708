"""The suite's settings with psycopg's connection pool, just as large as a child needs it."""

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES = DATABASES | {
    "default": DATABASES["default"] | {"OPTIONS": {"pool": {"min_size": 1, "max_size": 6}}}
}
