"""The reference of the commands says what the commands take, option by option."""

import argparse
import re

import pytest
from django.core.management import load_command_class

from example_project.postgres import PROJECT

PAGE = PROJECT / "docs" / "reference" / "commands.md"
OF_DJANGO = {
    "--help", "--version", "--verbosity", "--settings", "--pythonpath", "--traceback",
    "--no-color", "--force-color", "--skip-checks",
}  # fmt: skip


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command and subcommand, by its heading on the page."""
    worker = load_command_class("leasejobs", "runleaseworker")
    found = {"runleaseworker": worker.create_parser("manage.py", "runleaseworker")}
    command = load_command_class("leasejobs", "leasejobs").create_parser("manage.py", "leasejobs")
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {f"leasejobs {name}": parser for name, parser in action.choices.items()}
    return found


def rows(parser: argparse.ArgumentParser) -> list[str]:
    """Return the table that the page must have for a parser: argument, what it says of itself."""
    formatter = parser._get_formatter()
    found = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or OF_DJANGO & set(action.option_strings):
            continue
        name = ", ".join(action.option_strings) or str(action.metavar)
        if action.option_strings and action.nargs != 0:
            name = f"{name} {formatter._format_args(action, action.dest.upper())}"
        found.append(f"| `{name}` | {formatter._expand_help(action)} |")
    return found


def section(heading: str) -> str:
    parts = re.split(r"^#+ `(.+)`$", PAGE.read_text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True)).get(heading, "")


@pytest.mark.parametrize("heading", sorted(parsers()))
def test_page_lists_the_arguments_of_the_command_and_no_others(heading):
    listed = [line for line in section(heading).splitlines() if line.startswith("| `")]

    assert listed == rows(parsers()[heading])


def test_page_describes_no_command_that_does_not_exist():
    headings = re.findall(r"^#+ `(.+)`$", PAGE.read_text(), flags=re.M)

    assert sorted(headings) == sorted(parsers())
