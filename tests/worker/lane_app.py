"""An app that brings lanes of its own."""

import os

from django.apps import AppConfig


class LaneApp(AppConfig):
    """Registers the lanes that LEASEJOBS_TEST_LANES names."""

    name = "tests.worker"
    label = "lane_app"

    def ready(self) -> None:
        """Register."""
        from leasejobs.lanes import register_lane
        from tests.worker.account_lanes import AccountLane, BrokenLane

        for lane in (BrokenLane(), AccountLane()):
            if lane.name in os.environ["LEASEJOBS_TEST_LANES"].split():
                register_lane(lane)
