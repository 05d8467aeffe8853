"""Records that stand together: one batch, whatever a failpoint does to the others."""

from __future__ import annotations

import pytest

from meshq.errors import AddressFullError, InvariantError, UsageError
from meshq.limits import BATCH_BYTES_MAX, KIB
from tests.store.kit import Store


@pytest.mark.parametrize("failpoint", [False, True])
async def test_an_atomic_batch_is_one_batch_however_large(store: Store, failpoint: bool) -> None:
    store.failpoint["journal.batch_of_one"] = failpoint
    async with store.journal() as journal:
        journal.append_nowait(1, [b"before"])
        before = journal.statistics().batches
        with journal.atomic_batch(3_000 * KIB):
            first = journal.append_nowait(1, [bytes(1_000 * KIB)])
            journal.append_nowait(1, [bytes(1_000 * KIB)])
            last = journal.append_nowait(2, [bytes(900 * KIB)], tombstone=True, refs=[first])
        after = journal.append_nowait(1, [b"after"])
        await journal.wait_durable(after)
        assert (first, last, after) == (2, 4, 5)
        # The group begins a batch where it doesn't fit in the open one, and what follows begins the next one.
        assert journal.statistics().batches == before + 3


async def test_a_small_group_joins_the_open_batch(store: Store) -> None:
    async with store.journal() as journal:
        journal.append_nowait(1, [b"before"])
        with journal.atomic_batch(100):
            journal.append_nowait(1, [b"a"])
            journal.append_nowait(1, [b"b"])
        await journal.wait_durable(journal.append_nowait(1, [b"after"]))
        assert journal.statistics().batches == 1


async def test_what_no_batch_can_hold_is_refused_before_anything_is_placed(store: Store) -> None:
    async with store.journal() as journal:
        with pytest.raises(UsageError), journal.atomic_batch(BATCH_BYTES_MAX):
            raise AssertionError("it began")
        with journal.atomic_batch(10), pytest.raises(InvariantError), journal.atomic_batch(10):
            raise AssertionError("it began")
        assert journal.last == 0


async def test_a_full_disk_refuses_a_group_at_its_begin(store: Store) -> None:
    async with store.journal() as journal:
        journal.log.set_full(True)
        with pytest.raises(AddressFullError), journal.atomic_batch(10):
            raise AssertionError("it began")
        assert journal.last == 0
