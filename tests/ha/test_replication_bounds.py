"""A pair by replication within its bounds: memory, silence, and what a disk does in the middle."""

from __future__ import annotations

from typing import Any, cast

import attrs
import pytest
import trio

from meshq import ReplicationBackup, ReplicationPrimary
from meshq.broker.connection._replica_line import SILENCE_S_MIN, ReplicaConnection
from meshq.ha.replication import _follower
from meshq.ha.replication._node_directory import NodeDirectory
from meshq.ha.replication._saved_stores_plan import MOVES
from meshq.ha.replication._standing_format import Standing
from meshq.testing import SimDisk
from meshq.wire import Replicate
from tests.ha.replicated import machines, url_of


async def test_a_replica_joins_when_it_has_nearly_everything_and_not_when_that_was_sent() -> None:
    async with machines() as (ground, nursery):
        first = await ground.start(nursery, ground.broker("a", ReplicationPrimary()))
        async with ground.client() as client:
            await client.send("q", b"one")
            ground.threads["b"].close("install_copy")
            await ground.start(nursery, ground.broker("b", ReplicationBackup()))
            await trio.sleep(1)
            before = trio.current_time()
            await client.send("q", b"two")
            # Nobody waits for a copy that is being put in its place.
            assert trio.current_time() - before < 0.1 and first.ha.unprotected
            ground.threads["b"].open()
            await first.ha.wait_for(in_sync=True, timeout=10)


async def test_what_a_replica_keeps_in_memory_for_its_disk_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_follower, "UNSYNCED_BYTES_MAX", 100_000)
    kept: list[int] = []
    take = _follower.Follower._take_batch

    async def watched(self: Any, header: Any, first: int, body: bytes) -> None:
        if self._journal is not None:
            kept.append(sum(one.bytes for one in self._journal.log.queued))
        await take(self, header, first, body)

    monkeypatch.setattr(_follower.Follower, "_take_batch", watched)
    async with machines() as (ground, nursery):
        first = ground.broker("a", ReplicationPrimary(), cluster={"static_connectors": [url_of("b")]})
        await ground.start(nursery, first)
        async with ground.client_of("a") as client:
            await client.send("q", b"one")
            ground.threads["a"].close("_read")
            await ground.start(nursery, ground.broker("b", ReplicationBackup()))
            await trio.sleep(0.5)
            # A tail that is sent while the disk of the replica hangs.
            for _ in range(40):
                await client.send("q", b"x" * 20_000)
            ground.threads["b"].close("write")
            ground.threads["a"].open()
            await trio.sleep(3)
            assert 0 < max(kept) < 300_000
            ground.threads["b"].open()
            await first.ha.wait_for(in_sync=True, timeout=60)


@pytest.mark.parametrize(
    ("wanted", "own", "silence"), [(60, 5, 5), (5, 60, 5), (0.001, 60, 1), (86_400, 86_400, 86_400)]
)
def test_the_silence_that_ends_a_link_is_no_longer_than_the_own_one(wanted: float, own: float, silence: float) -> None:
    class Host:
        silence_s_max = own

        def follow(self, request: Replicate, line: Any, peer: str) -> None:
            return None

    @attrs.define
    class Peer:
        peer: str = "b"

    line = ReplicaConnection(cast("Any", Peer()), cast("Any", None), lambda text: None)
    request = Replicate(instance=bytes(16), node_name="b", ttl_ms=int(wanted * 1000))
    assert line.begin(cast("Any", Host()), request) == silence >= SILENCE_S_MIN


def directory() -> tuple[NodeDirectory, SimDisk]:
    """Make the directory of a node with a store, and a whole copy beside it."""
    disk = SimDisk()
    found = NodeDirectory(disk.mount(), "/data")
    found.enter()
    for part, name in (
        ("journal", "old"),
        ("bindings", "old"),
        ("syncing/journal", "new"),
        ("syncing/bindings", "new"),
    ):
        above, _, last = part.rpartition("/")
        for each in (above, part) if above else (last,):
            if each and each.rpartition("/")[2] not in disk.names(f"/data/{each.rpartition('/')[0]}".rstrip("/")):
                disk.make_directory(f"/data/{each}")
        file = disk.open(f"/data/{part}/{name}", create=True)
        file.sync()
        file.close()
    return found, disk


@pytest.mark.parametrize("good", [0, 1, 2, 3])
def test_moves_that_failed_in_the_middle_are_complete_before_another_copy_begins(
    good: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, disk = directory()
    move, left = NodeDirectory._move, [good]

    def failing(self: NodeDirectory, old: str, new: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise OSError("the disk has failed")
        move(self, old, new)

    monkeypatch.setattr(NodeDirectory, "_move", failing)
    with pytest.raises(OSError, match="failed"):
        found.install_copy(Standing(epoch=2), 2)
    found.clear_copy()
    assert MOVES not in disk.names("/data")
    # A start from here on finds one of the two stores, and all of it.
    assert {part: disk.names(f"/data/{part}") for part in ("journal", "bindings")} == {
        "journal": ["new"],
        "bindings": ["new"],
    }
