"""The stores of a primary and its replica compared: the first record that differs is named, while traffic goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from meshq import (
    Broker,
    DamagedError,
    Message,
    NotActiveError,
    NotFoundError,
    RefusedError,
    RemoteProtocolError,
    ReplicationPrimary,
)
from meshq.abc import Difference, RecordDigest
from meshq.ha.replication._feeder import Feeder
from meshq.ha.replication._follower import Follower
from meshq.ha.replication.comparison._comparison_plan import (
    Compared,
    answer_of,
    failed_answer,
    first_difference,
    pack_digests,
    read_answer,
    stretch,
    unpack_digests,
)
from meshq.store import Journal
from tests.ha.replicated import Machines, machines

ONE, OTHER = b"1" * 16, b"2" * 16


def marks(**digests: bytes) -> list[RecordDigest]:
    return [RecordDigest(int(name[1:]), digest) for name, digest in digests.items()]


def test_the_first_record_that_is_in_one_store_only_or_says_something_else_is_the_difference() -> None:
    here = marks(_3=ONE, _5=ONE, _9=ONE)
    assert first_difference(here, here) is None
    assert first_difference(here, marks(_3=ONE, _5=OTHER)) == Difference(position=5, here=ONE, there=OTHER)
    assert first_difference(here, marks(_3=ONE, _9=OTHER)) == Difference(position=5, here=ONE, there=None)
    assert first_difference(here, marks(_3=ONE, _4=OTHER, _5=OTHER)) == Difference(position=4, here=None, there=OTHER)
    assert stretch(here, 3, 5) == marks(_5=ONE) and stretch(here, 5, 8) == []


def test_what_is_said_of_records_and_of_a_difference_is_what_is_heard() -> None:
    here = marks(_3=ONE, _5=OTHER)
    assert unpack_digests(pack_digests(here)) == here and len(pack_digests(here)) == 48
    with pytest.raises(RemoteProtocolError, match="47 bytes"):
        unpack_digests(pack_digests(here)[1:])
    for found in (None, Difference(position=7, here=ONE, there=OTHER), Difference(position=7, here=ONE, there=None)):
        expected = Compared(4) if found is None else Compared(4, 7, found.there)
        assert read_answer(*answer_of(4, found)) == expected
    assert read_answer(failed_answer(4, OSError("gone")), 0) == Compared(4, failure="gone")
    with pytest.raises(RemoteProtocolError):
        read_answer(attrs.evolve(answer_of(4, None)[0], text="no digits"), 7)


@attrs.define
class Pair:
    """A pair in sync, and the journal of the replica."""

    ground: Machines
    nursery: trio.Nursery
    first: Broker
    second: Broker
    journal: Journal
    followers: list[Follower]

    async def diff(self) -> Difference | None:
        with trio.fail_after(60):
            return await self.first.ha.replica("b").diff()

    @property
    def here(self) -> Any:
        comparer: Any = self.first.ha._board.comparer
        return comparer._followed()[1].start.source


@asynccontextmanager
async def pairs(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    followers: list[Follower] = []
    take = Follower._take_in_sync

    async def noted(self: Follower, *piece: Any) -> None:
        followers.append(self)
        await take(self, *piece)

    monkeypatch.setattr(Follower, "_take_in_sync", noted)
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery)
        assert followers[-1]._journal is not None
        yield Pair(ground, nursery, first, second, followers[-1]._journal, followers)


async def live(source: Any) -> list[int]:
    found: list[int] = []
    while more := await source.live(found[-1] if found else 0, 10**9):
        found += [one.position for one in more]
    return found


async def test_two_stores_of_a_pair_are_equal_while_messages_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshq.store.reading._segment_source.RECORDS_READ", 7)
    async with pairs(monkeypatch) as pair, pair.ground.client() as client:
        await client.send_many("q", [Message(b"%d" % number) for number in range(12)])
        found: list[Difference | None] = []

        async def compare() -> None:
            for _ in range(3):
                found.append(await pair.diff())

        async with client.consumer("q") as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(compare)
            nursery.start_soon(compare)
            for number in range(4):
                await client.send("q", b"more %d" % number)
                await consumer.ack(*await consumer.receive_many(3, timeout=5), confirm=True)
        assert found == [None] * 6
        assert await live(pair.here) == await live(pair.journal.source) != []


async def test_a_record_that_says_something_else_at_the_replica_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Follower._take_batch

    async def altered(self: Follower, header: Any, first: int, body: bytes) -> None:
        await take(self, header, first, body.replace(b"two umbrellas", b"two umbrellos"))

    async with pairs(monkeypatch) as pair, pair.ground.client() as client:
        await client.send("q", b"one umbrella")
        monkeypatch.setattr(Follower, "_take_batch", altered)
        before = pair.journal.last
        await client.send("q", b"two umbrellas")
        await client.send("q", b"two umbrellas")
        found = await pair.diff()
        assert found is not None and before < found.position <= pair.journal.last
        assert found.here and found.there and found.here != found.there
        # The first one is named.
        assert found.position < pair.journal.last


async def test_a_record_that_only_one_of_the_two_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pairs(monkeypatch) as pair, pair.ground.client() as client:
        await client.send("q", b"one")
        await client.send("q", b"two")
        assert await pair.diff() is None
        positions = await live(pair.here)
        kept: Any = pair.journal
        kept._parts.state.usage._delete(positions[-1])
        found = await pair.diff()
        assert found is not None and (found.position, found.there) == (positions[-1], None) and found.here
        # What the replica has too much comes before it.
        pair.here._state.usage._delete(positions[1])
        found = await pair.diff()
        assert found is not None and (found.position, found.here) == (positions[1], None) and found.there


async def test_a_record_that_is_deleted_while_it_is_compared_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pairs(monkeypatch) as pair, pair.ground.client() as client:
        await client.send("q", b"one")
        asked: Any = pair.here.live
        slow = trio.Event()

        async def late(beyond: int, upto: int) -> Any:
            found = await asked(beyond, upto)
            await slow.wait()
            return found

        monkeypatch.setattr(pair.here, "live", late)
        found: list[Difference | None] = []

        async def compare() -> None:
            found.append(await pair.diff())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(compare)
            await trio.sleep(0.1)
            async with client.consumer("q") as consumer:
                await consumer.ack(await consumer.receive(timeout=5), confirm=True)
            slow.set()
        assert found == [None]


async def test_who_can_not_be_compared_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pairs(monkeypatch) as pair, pair.ground.client() as client:
        await client.send("q", b"one")
        with pytest.raises(NotFoundError, match="'c'"):
            await pair.first.ha.replica("c").diff()
        with pytest.raises(NotActiveError):
            await pair.second.ha.replica("a").diff()

        failure: Exception = OSError("the disk failed")

        async def fail(beyond: int, upto: int) -> Any:
            await trio.lowlevel.checkpoint()
            raise failure

        with monkeypatch.context() as patched:
            patched.setattr(pair.here, "live", fail)
            with pytest.raises(OSError, match="the disk failed"):
                await pair.diff()
            failure = DamagedError("/data/x", 0, "a record", "nothing")
            with pytest.raises(DamagedError):
                await pair.diff()
        monkeypatch.setattr(pair.journal.source, "live", fail)
        with pytest.raises(RefusedError, match=r"'b' can't read its store: .*/data/x"):
            await pair.first.ha.replica("b").diff()
        # That ends no link.
        assert pair.first.ha.replicas[0].in_sync
        pair.ground.threads["b"].close("_read")
        monkeypatch.undo()
        pair.nursery.start_soon(_crash_later, pair)
        with pytest.raises(RefusedError, match="'b' was lost"):
            await pair.diff()
        pair.ground.threads["b"].open()


async def _crash_later(pair: Pair) -> None:
    await trio.sleep(0.1)
    await pair.ground.crash(pair.second)


async def test_a_replica_that_is_not_in_sync_is_not_compared() -> None:
    async with machines() as (ground, nursery):
        first = await ground.start(nursery, ground.broker("a", ReplicationPrimary()))
        with pytest.raises(NotFoundError):
            await first.ha.replica("b").diff()


async def test_a_replica_of_an_older_version_is_not_asked_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pairs(monkeypatch) as pair:
        acting: Any = pair.first.ha._board.replicas
        acting.feeder.wanted = attrs.evolve(acting.feeder.wanted, compares=False)
        with pytest.raises(RefusedError, match="older version"):
            await pair.diff()
        assert pair.first.ha.in_sync


async def test_an_answer_that_comes_late_takes_the_place_of_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pairs(monkeypatch) as pair:
        acting: Any = pair.first.ha._board.replicas
        for number, known in ((8, 8), (7, 8), (9, 9)):
            acting.feeder.heard(*answer_of(number, None))
            assert acting.term.compared.number == known


async def test_a_comparison_ends_as_soon_as_its_replica_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Feeder, "compare", lambda *asked: None)
    async with pairs(monkeypatch) as pair, pair.ground.client() as client, trio.open_nursery() as nursery:
        await client.send("q", b"one")
        acting: Any = pair.first.ha._board.replicas
        refused = list[str]()

        async def compare() -> None:
            with pytest.raises(RefusedError, match="was lost") as caught:
                await pair.diff()
            refused.append(str(caught.value))

        nursery.start_soon(compare)
        await trio.testing.wait_all_tasks_blocked()
        # As where others vote: what becomes of the replica is not known for a while.
        monkeypatch.setattr(acting.feeder, "_over", lambda reason, known: None)
        acting.feeder.end("link")
        await trio.testing.wait_all_tasks_blocked()
        assert len(refused) == 1
