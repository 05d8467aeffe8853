"""A store says how new it is: of two copies of one store the one that was used later says more."""

from __future__ import annotations

import re

from meshq.store.inspection._dump import dump_store
from qa.journal.model import ROOT_DIRECTORY
from tests.store.kit import Store


def mark(store: Store) -> tuple[int, int]:
    """The generation of a store and its last position, as the command shows them."""
    (line,) = [line for line in dump_store(store.disk, ROOT_DIRECTORY) if line.startswith("manifest ")]
    found = re.fullmatch(r"manifest generation (\d+) last (\d+) next segment \d+", line)
    assert found is not None
    return int(found[1]), int(found[2])


async def test_the_mark_rises_with_each_activation_and_an_older_copy_has_a_lower_one(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append(b"one")
    marks, copies = [mark(store)], [store.disk.copy()]
    for life in range(3):
        # Also a life in which nothing is written.
        async with store.journal() as journal:
            if life:
                await journal.append(b"more")
        marks.append(mark(store))
        copies.append(store.disk.copy())
    assert marks == sorted(set(marks))
    assert [mark(Store(copy)) for copy in copies] == marks
    # What dies without a word has risen, too: a start says so before it serves.
    journal = store.journal()
    await journal.open()
    assert mark(Store(store.disk.copy())) > marks[-1]
    await journal.aclose()
