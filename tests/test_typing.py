"""What a type checker sees of the public API."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(
    not (find_spec("mypy") and find_spec("mypy_django_plugin")), reason="mypy is not installed"
)
def test_type_checker_accepts_and_refuses_what_it_should():
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "tests/typing/usage.py"]

    found = subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=280
    )

    assert found.returncode == 0, found.stdout + found.stderr
