"""What the package exports: the same names, whichever of its modules was imported before."""

import pkgutil
import subprocess
import sys

import pytest

import leasejobs
from leasejobs.exceptions import InvalidArguments, LeaseJobsError

IMPORTS = """
import importlib, os, pkgutil, sys, types
import django
django.setup()
import leasejobs
names = [
    module.name
    for module in pkgutil.walk_packages(leasejobs.__path__, "leasejobs.")
    if ".migrations." not in module.name
    # The settings of a worker that a test starts: importing them needs that worker's environment.
    and not module.name.endswith(("__main__", ".testing.settings"))
]
def check(*steps):
    if os.fork() == 0:
        try:
            for step in steps:
                step()
            for name in leasejobs.__all__:
                value = getattr(importlib.import_module("leasejobs"), name)
                assert not isinstance(value, types.ModuleType), name
                assert value.__module__.startswith("leasejobs."), name
        except BaseException as error:
            print(names, steps, repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return os.wait()[1]
def public():
    exec("from leasejobs import " + ", ".join(leasejobs.__all__))
failed = 0
for name in names:
    submodule = lambda: importlib.import_module(name)
    failed |= check(submodule, public) | check(public, submodule, public)
print(len(names), "submodules")
sys.exit(failed != 0)
"""


@pytest.mark.django_db(databases=[])
def test_public_names_are_what_they_are_before_and_after_every_submodule():
    found = run_python(IMPORTS)

    assert found.returncode == 0, found.stdout + found.stderr
    assert int(found.stdout.split()[0]) > 25


def test_no_submodule_has_the_name_of_a_public_export():
    modules = {module.name for module in pkgutil.iter_modules(leasejobs.__path__)}

    assert modules.isdisjoint(leasejobs.__all__)


def test_importing_the_package_imports_nothing_else():
    found = run_python(
        "import sys; before = set(sys.modules); import leasejobs; leasejobs.__version__;"
        "dir(leasejobs); new = {n.split('.')[0] for n in set(sys.modules) - before};"
        "print(sorted(n for n in new if n not in sys.stdlib_module_names))"
    )

    assert found.stdout.strip() == "['leasejobs']", found.stderr


def test_package_says_what_it_does_not_have():
    with pytest.raises(AttributeError, match="nonsense"):
        leasejobs.nonsense  # noqa: B018

    assert set(leasejobs.__all__) <= set(dir(leasejobs))


def test_errors_hang_under_one_base():
    assert issubclass(InvalidArguments, LeaseJobsError)
    assert issubclass(InvalidArguments, ValueError)
    for name in leasejobs.__all__:
        value = getattr(leasejobs, name)
        if isinstance(value, type) and value.__module__ == "leasejobs.exceptions":
            assert issubclass(value, LeaseJobsError)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
