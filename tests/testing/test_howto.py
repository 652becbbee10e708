"""The tests on the how-to page about tests pass, run as the page says."""

import os
import re
import subprocess
import sys

import pytest

from example_project.postgres import PROJECT

PAGE = PROJECT / "docs" / "howto" / "test-tasks.md"


@pytest.mark.crash
def test_tests_on_the_page_pass(postgres_server, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    names = re.findall(r"^ *def (test_\w+)", "".join(blocks), re.M)
    (tmp_path / "test_page.py").write_text("\n\n".join(blocks))
    about = tmp_path / "plugin" / "leasejobs_plugin-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: leasejobs-plugin\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[pytest11]\nleasejobs = leasejobs.testing.plugin\n")
    environment = os.environ | {
        "TOX_ENV_NAME": f"page_{os.getpid()}", "PYTEST_ADDOPTS": "",
        "PYTHONPATH": os.pathsep.join([str(about.parent), str(PROJECT)]),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
    }  # fmt: skip

    result = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error"),
            *("-c", os.devnull, f"--rootdir={tmp_path}", "test_page.py"),
        ],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip

    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(names)} passed" in result.stdout
