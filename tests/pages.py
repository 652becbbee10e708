"""Read the pages of `docs/`: their tables, and the Python on them."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from unittest import SkipTest

from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser, SkipParser

from example_project.postgres import PROJECT

DOCS = PROJECT / "docs"
PAGES = [
    PROJECT / "README.md",
    *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts),
]

Table = list[dict[str, str]]

_CELL_BORDER = re.compile(r"(?<!\\)\|")


def tables(page: str) -> Iterator[Table]:
    """Yield the tables of a page of `docs/`, each row a dictionary by the words of its head."""
    head: list[str] = []
    rows: Table = []
    for line in [*(DOCS / page).read_text().splitlines(), ""]:
        if not line.startswith("|"):
            if head:
                yield rows
            head, rows = [], []
            continue
        cells = [cell.strip() for cell in _CELL_BORDER.split(line)[1:-1]]
        if not head:
            head = cells
        elif not set("".join(cells)) <= set("-: "):
            rows.append(dict(zip(head, cells, strict=True)))


def rows(page: str, head: str) -> Table:
    """Return the rows of all tables of a page whose first column is called `head`."""
    return [row for table in tables(page) for row in table if next(iter(row)) == head]


def code(cell: str) -> str:
    """Return what a cell has in backticks; the cell holds nothing else."""
    match = re.fullmatch(r"`+(.*?)`+", cell)
    assert match, f"{cell!r} is not one piece of code"
    return match[1].replace("\\|", "|")


def codes(cell: str) -> list[str]:
    """Return every piece of code in a cell, in order."""
    return re.findall(r"`([^`]+)`", cell)


def names(page: str, head: str) -> list[str]:
    """Return the first column of `rows`, out of its backticks."""
    return [code(row[head]) for row in rows(page, head)]


def run(path: Path, module: ModuleType) -> None:
    """Run the Python of a page, block after block, in `module`.

    A block after `% skip: next "why"` is passed over.
    """
    sybil = Sybil([SkipParser(), PythonCodeBlockParser()], pattern="*.md")
    document = sybil.parse(path)
    document.namespace = module.__dict__
    for example in document.examples():
        with suppress(SkipTest):
            example.evaluate()
