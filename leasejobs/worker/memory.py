"""How much memory this process has."""

import sys
from pathlib import Path


def rss_mb() -> float:
    """Return the resident set in MB: what it is now on Linux, what it was at most elsewhere."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource  # there is none on Windows

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    import os

    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
