"""The suite's settings with a SHUTDOWN_SECONDS that the test chose."""

import os

from tests.settings import *  # noqa: F403

LEASEJOBS = {"SHUTDOWN_SECONDS": float(os.environ["LEASEJOBS_TEST_SHUTDOWN"])}
