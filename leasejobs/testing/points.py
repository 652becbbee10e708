"""Stop a worker child at a named point, for crash tests.

`LEASEJOBS_POINTS` in the environment of `runleaseworker` holds one rule or several, separated by
spaces: `point=action[:nth]`, where the action is `kill` (SIGKILL), `stop` (SIGSTOP), `exit`
(status 70), `raise` (a RuntimeError) or `wait` (until the file of that name is removed), and
`nth`, from 1, says at which passing. `LEASEJOBS_POINTS_DIRECTORY` names a directory in which each
rule that fired leaves the file `point`, holding the process id; a rule fires once for all children
that share it.
"""

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

from leasejobs import points

ACTIONS = ("kill", "stop", "exit", "raise", "wait")


def install_from_environment() -> None:
    """Install the rules of `LEASEJOBS_POINTS` in this process; raise ValueError on a bad one."""
    directory = Path(os.environ["LEASEJOBS_POINTS_DIRECTORY"])
    rules: dict[str, tuple[str, int]] = {}
    for rule in os.environ["LEASEJOBS_POINTS"].split():
        name, _, rest = rule.partition("=")
        action, _, nth = rest.partition(":")
        if name not in points.NAMES or action not in ACTIONS:
            raise ValueError(f"{rule!r}: a point is one of {points.NAMES}, an action of {ACTIONS}")
        rules[name] = action, int(nth or 1)
    passed: Counter[str] = Counter()
    counting = threading.Lock()

    def reached(name: str) -> None:
        if name not in rules:
            return
        action, nth = rules[name]
        with counting:
            passed[name] += 1
            if passed[name] != nth or not _fires_first(directory / name):
                return
        _act(action, directory / name)

    points.install(reached)


def _fires_first(mark: Path) -> bool:
    # Written aside and linked, so that whoever sees the file sees the process id in it.
    draft = mark.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    draft.write_text(str(os.getpid()))
    try:
        os.link(draft, mark)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def _act(action: str, mark: Path) -> None:
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            # To this thread: one sent to the process may stop another first and let this run on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case "exit":
            os._exit(70)
        case "raise":
            raise RuntimeError("a test raises here")
        case "wait":
            while mark.exists():
                time.sleep(0.01)
