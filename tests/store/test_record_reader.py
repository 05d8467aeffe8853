"""Records read back by position while the journal is written, reclaimed and compacted."""

from __future__ import annotations

import pytest
import trio

from meshq.errors import ClosedError, JournalBrokenError
from meshq.limits import SEGMENT_HEADER_BYTES
from meshq.store import Journal
from meshq.store.formats._layout_format import Layout
from qa.journal.model import ROOT_DIRECTORY
from tests.store.kit import Store


async def payloads(journal: Journal, positions: list[int]) -> dict[int, bytes]:
    return {position: record.payload for position, record in (await journal.read(positions)).items()}


@pytest.mark.parametrize("keys", [(), (b"k" * 32,)])
async def test_what_was_placed_is_read_back_also_from_the_segment_under_way(
    store: Store, keys: tuple[bytes, ...]
) -> None:
    store.keys = keys
    async with store.journal() as journal:
        written = {
            await journal.append(b"%d" % number + bytes(900)): b"%d" % number + bytes(900) for number in range(60)
        }
        assert journal.statistics().segments > 2
        assert await payloads(journal, list(written)) == written
        together = [journal.append_nowait(2, [b"part", b"%d" % number]) for number in range(20)]
        await journal.wait_durable(together[-1])
        assert await payloads(journal, together[3:5]) == {together[3]: b"part3", together[4]: b"part4"}
    async with store.journal() as journal:
        assert await payloads(journal, list(written)) == written
        found = await journal.read(together[:1])
        assert found[together[0]].kind == 2


async def test_what_refers_to_others_is_read_without_that(store: Store) -> None:
    async with store.journal() as journal:
        target = await journal.append(b"target")
        position = journal.append_nowait(3, [b"root"], refs=[target])
        await journal.wait_durable(position)
        assert await payloads(journal, [position]) == {position: b"root"}


async def test_what_has_died_is_left_out(store: Store) -> None:
    async with store.journal() as journal:
        first, second = await journal.append(b"1"), await journal.append(b"2")
        await journal.delete(first)
        assert await payloads(journal, [first, second]) == {second: b"2"}
        assert await payloads(journal, []) == {}


async def test_positions_stay_readable_while_segments_are_compacted(store: Store) -> None:
    store.failpoint["journal.compact_early"] = True
    async with store.journal() as journal:
        survivors = {}
        for number in range(12):
            for part in range(14):
                body = b"%d.%d" % (number, part) + bytes(900)
                position = await journal.append(body)
                if part == 3:
                    survivors[position] = body
                else:
                    await journal.delete(position)
            assert await payloads(journal, list(survivors)) == survivors
            await trio.sleep(2)
        assert journal.statistics().compactions > 0
        assert await payloads(journal, list(survivors)) == survivors


async def test_a_record_that_moved_while_somebody_was_on_the_way_to_it_is_found(store: Store) -> None:
    async with store.journal() as journal:
        position = await journal.append(b"here" + bytes(900))
        for _ in range(40):
            await journal.delete(await journal.append(bytes(900)))
        find_record = journal._parts.state.usage.find_record
        victim = find_record(position)
        assert victim is not None
        threads, met = journal._parts.state.env.threads, []
        run = threads.run

        async def late(function, *arguments, pool="default"):  # type: ignore[no-untyped-def]
            if pool == "pages" and not met:
                met.append(1)
                await journal._parts.compactor.compact([victim[0].number], journal.durable)
            return await run(function, *arguments, pool=pool)

        threads.run = late  # type: ignore[method-assign]
        assert await payloads(journal, [position]) == {position: b"here" + bytes(900)} and met


@pytest.mark.parametrize("where", ["header", "head", "body", "tag"])
@pytest.mark.parametrize("keys", [(), (b"k" * 32,)])
async def test_rot_is_damage_and_never_other_bytes(store: Store, where: str, keys: tuple[bytes, ...]) -> None:
    store.keys, store.damaged = keys, True
    with pytest.raises(JournalBrokenError):
        async with store.journal() as journal:
            position = await journal.append(b"whole" + bytes(900))
            path = store.segments()[-1]
            size = 1024
            at = {"header": 24, "head": SEGMENT_HEADER_BYTES + 30, "body": SEGMENT_HEADER_BYTES + 200}
            store.disk.flip_bit(path, 8 * at.get(where, SEGMENT_HEADER_BYTES + size - 3))
            with pytest.raises(JournalBrokenError):
                await journal.read([position])
            assert journal.state == "failed"
            with pytest.raises(JournalBrokenError):
                await journal.read([position])


async def test_a_segment_that_is_gone_without_a_word_is_damage(store: Store) -> None:
    store.damaged = True
    with pytest.raises(JournalBrokenError):
        async with store.journal() as journal:
            position = await journal.append(b"whole")
            store.disk.mount().remove(Layout(ROOT_DIRECTORY).segment(store.manifest().entries[-1].number))
            with pytest.raises(JournalBrokenError, match="no such file"):
                await journal.read([position])


async def test_a_journal_that_is_closed_reads_nothing(store: Store) -> None:
    async with store.journal() as journal:
        position = await journal.append(b"1")
    with pytest.raises(ClosedError):
        await journal.read([position])
