"""`--reload`: end a child when the code it has loaded changes, for its supervisor to start another.

For development. Files are polled each second; a child whose new code does not import dies at
start and is started again, so the next save that mends it is picked up, too.
"""

import os
import threading
import time
from pathlib import Path
from typing import Final

from django.utils.autoreload import iter_all_python_module_files

from leasejobs.worker.loop import Loop
from leasejobs.worker.supervisor import STARTED_VARIABLE

_POLL_SECONDS: Final = 1.0


def watch_code(loop: Loop) -> None:
    """Recycle `loop` once a module's file changes."""
    threading.Thread(target=_watch, args=(loop,), name="leasejobs-reload", daemon=True).start()


def _watch(loop: Loop) -> None:
    # What was saved since the process began may have been read before that.
    began = float(os.environ.get(STARTED_VARIABLE, "inf"))
    seen: dict[Path, float] = {}
    while True:
        for path in iter_all_python_module_files():
            try:
                changed_at = path.stat().st_mtime
            except OSError:
                continue  # an editor may be replacing it
            if seen.setdefault(path, changed_at) != changed_at or changed_at > began:
                loop.recycle(f"{path} changed")
                return
        time.sleep(_POLL_SECONDS)
