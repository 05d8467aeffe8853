"""Pages of rows: as many rows as the header of a frame has room for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from meshq.broker.work._long_operations import Values

#: Bytes of names in one page: well under what the header of a frame may have.
PAGE_BYTES_MAX: Final = 3_000


def page_of_names(name: str, names: Iterable[str]) -> Values:
    """The first of these names in the order of their characters, as many as a frame holds, and whether more follow."""
    return page_in_order(name, sorted(names))


def page_in_order(name: str, names: Iterable[str]) -> Values:
    """As ``page_of_names``, of names that come in order: no more of them are asked for than the page has, and one."""
    size = 0
    page: list[Values] = []
    for one in names:
        size += len(one.encode()) + 16
        if size > PAGE_BYTES_MAX and page:
            return {name: page, "more": True}
        page.append({"queue": one})
    return {name: page, "more": False}


def page_of(name: str, rows: list[Values], after: int) -> Values:
    """The rows from ``after`` on, as many as a frame holds, and whether more follow."""
    size = 0
    page: list[Values] = []
    for row in rows[max(after, 0) :]:
        size += sum(len(str(item).encode()) + len(key) + 8 for key, item in row.items())
        if size > PAGE_BYTES_MAX and page:
            break
        page.append(row)
    return {name: page, "more": max(after, 0) + len(page) < len(rows)}
