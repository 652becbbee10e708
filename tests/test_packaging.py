"""The wheel holds the app, whole, and nothing else of the project."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from example_project.postgres import PROJECT


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory) -> set[str]:
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--disable-pip-version-check"),
            *("--wheel-dir", str(target), str(PROJECT)),
        ],
        check=True,
    )
    (wheel,) = target.glob("leasejobs-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_is_marked_as_typed(wheel_names):
    assert "leasejobs/py.typed" in wheel_names


def test_wheel_contains_the_migrations(wheel_names):
    assert "leasejobs/migrations/0001_initial.py" in wheel_names


def test_wheel_contains_every_file_of_the_package(wheel_names):
    files = {
        path.relative_to(PROJECT).as_posix()
        for path in (PROJECT / "leasejobs").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert files <= wheel_names


def test_wheel_contains_nothing_beside_the_package(wheel_names):
    tops = {Path(name).parts[0] for name in wheel_names}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"leasejobs"}


def test_wheel_carries_the_licence(wheel_names):
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel_names)
