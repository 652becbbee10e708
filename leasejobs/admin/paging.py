"""Pages over tables of millions: no COUNT(*), no deep OFFSET."""

from typing import Any, Final

from django.core.paginator import Paginator
from django.utils.functional import cached_property

MOST_ROWS: Final = 2_000


class CappedPaginator(Paginator):  # type: ignore[type-arg]  # generic in the stubs only
    """Pages over the first `MOST_ROWS` rows only; older ones are reached by search and filters.

    The count is that of a list of keys, read from the index that also orders the page; a
    COUNT(*) would read all of the table.
    """

    @cached_property
    def count(self) -> int:
        """Return how many rows there are to page through, at most `MOST_ROWS`."""
        rows: Any = self.object_list
        return len(rows.values_list("pk", flat=True)[:MOST_ROWS])
