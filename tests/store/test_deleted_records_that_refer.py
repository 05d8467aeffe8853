"""A record that refers to another record and is deleted first: it is kept as long as the other one lives."""

from __future__ import annotations

import pytest
import trio

from meshq.store import Journal
from tests.store.kit import Store, make_owner


async def _fill(journal: Journal, count: int) -> None:
    """Let segments come and go: deleted records are reclaimed or compacted."""
    for _ in range(count):
        position = journal.append_nowait(1, [bytes(800)])
        await journal.wait_durable(journal.append_nowait(8, [], tombstone=True, deletes=[position]))
    await trio.sleep(20)


@pytest.mark.parametrize("more", [0, 300])
async def test_it_is_handed_out_as_dead_until_what_it_refers_to_is_dead(store: Store, more: int) -> None:
    async with store.journal() as journal:
        journal.attach(make_owner(checkpoint=list))
        spoken_of = journal.append_nowait(1, [b"spoken of"])
        about = journal.append_nowait(2, [b"about it"], refs=[spoken_of])
        alone = journal.append_nowait(3, [b"alone"])
        journal.append_nowait(8, [], tombstone=True, deletes=[about, alone])
        await _fill(journal, 100)
        journal.append_nowait(4, [b"lives"])
        await _fill(journal, more)
    # Behind a checkpoint only what is needed is left.
    found = {record.kind: record for record in store.records(deleted=True)}
    async with store.journal() as journal:
        journal.attach(make_owner(checkpoint=list))
        assert found[2].deleted and found[2].refs == (spoken_of,) and found[2].payload == b"about it"
        assert 3 not in found
        journal.append_nowait(8, [], tombstone=True, deletes=[spoken_of])
        await journal.wait_durable(journal.last)
        # Its checkpoint comes behind it.
        await trio.sleep(1)
    assert not {record.payload for record in store.records(deleted=True)} & {b"spoken of", b"about it"}
