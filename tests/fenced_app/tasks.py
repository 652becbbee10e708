"""What a worker of the suite finds at start: the suite's tasks."""

import tests.tasks
import tests.worker.tasks  # noqa: F401
