"""The reference of the API names what the code has, and nothing else."""

import ast
import re
from dataclasses import fields

import pytest

import leasejobs
from example_project.postgres import PROJECT
from leasejobs import JobContext, Task, TaskResult, exceptions
from leasejobs.compat import Task as DjangoTask
from leasejobs.options import DeclaredOptions, UsingOptions

PAGE = (PROJECT / "docs/reference/api.md").read_text()
# How a task keeps what `run_after` and `metadata` were given as, and which keys are plain text.
KEPT = {"delay", "metadata_json", "literals"}


def rows(heading: str, head: str) -> list[list[str]]:
    """Return the cells of the table under a heading whose first column is called `head`."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = section.split(f"| {head} |")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")[2:]]


def names(heading: str, head: str) -> set[str]:
    """Return the names in the first column of such a table."""
    return {name for row in rows(heading, head) for name in re.findall(r"`(\w+)", row[0])}


def public(kind: type) -> set[str]:
    """Return what a class adds to object for its users."""
    return {name for name in dir(kind) if not name.startswith("_")}


def test_options_are_those_of_a_task():
    declared = {name for name, _, on_task, *_ in _options() if on_task != "no"}
    using = {name for name, _, _, in_using, _ in _options() if in_using != "no"}

    assert declared == {*DeclaredOptions.__optional_keys__, "takes_context"}
    assert using == UsingOptions.__optional_keys__ - {"delay"}
    assert declared | using == (
        {field.name for field in fields(Task)} - KEPT - {"func"} | {"metadata"}
    )


@pytest.mark.parametrize("option", [
    field.name for field in fields(Task)
    if field.name not in KEPT | {field.name for field in fields(DjangoTask)} | {"backoff"}
])  # fmt: skip
def test_default_of_an_option_is_that_of_the_code(option):
    [stated] = [default for name, default, *_ in _options() if name == option]

    assert ast.literal_eval(stated.strip("`")) == Task.__dataclass_fields__[option].default


def test_members_of_a_result_are_those_of_the_code():
    added = {field.name for field in fields(TaskResult) if not field.name.startswith("_")}

    assert names("TaskResult", "member") == added - {"charged"} | {
        "attempts", "await_", "arefresh", "is_finished", "refresh", "return_value", "wait",
    }  # fmt: skip


def test_members_of_the_context_are_those_of_the_code():
    assert names("JobContext", "member") == public(JobContext) | {"job", "is_completed"}


def test_errors_are_those_of_the_code():
    assert names("Errors", "error") == {
        name for name, value in vars(exceptions).items() if isinstance(value, type)
    }
    assert names("Errors", "error") <= set(leasejobs.__all__)


def _options() -> list[list[str]]:
    return [[row[0].strip("`"), *row[1:]] for row in rows("Options of a task", "option")]
