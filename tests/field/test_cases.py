"""Every case of the list has a test, and every marked test a case of the list."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.field.cases import CASES

TESTS = Path(__file__).resolve().parent.parent


def marked() -> Iterator[tuple[str, str]]:
    """Yield (id, name of the test) of each mark in the source of the suite."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
                "test_"
            ):
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith(
                        "mark.field_case"
                    ):
                        for argument in decorator.args:
                            assert isinstance(argument, ast.Constant), path
                            yield argument.value, f"{path.name}::{node.name}"


def test_every_case_that_can_be_tested_has_a_test():
    shown = {case for case, _ in marked()}

    wanted = {name for name, case in CASES.items() if not case.waits_for}
    assert wanted - shown == set()


def test_no_case_waits_for_what_is_there():
    shown = {case for case, _ in marked()}

    assert {name for name, case in CASES.items() if case.waits_for} & shown == set()


def test_every_mark_names_a_case():
    assert {case for case, _ in marked()} - CASES.keys() == set()
