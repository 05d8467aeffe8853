"""Which copy of a pair has the counter of its quorum: a whole one only, and one of a name."""

from __future__ import annotations

import errno
from typing import Any

import attrs
import pytest
import trio

from meshq import Broker, SettingsError
from meshq.abc import QuorumRecord
from meshq.ha.replication._feeder import Feeder
from meshq.ha.replication._follower import Follower
from meshq.ha.replication._node_directory import NodeDirectory
from meshq.ha.replication._standing_format import Standing
from meshq.testing import SimDisk
from meshq.testing._quorum import MemoryQuorumSession
from tests.ha.provided import SESSION_S, Pair, active, pairs
from tests.ha.replicated import url_of


@attrs.define
class Stopped:
    """A replica that is killed at a step, with the disk that it had then."""

    step: trio.Event = attrs.field(factory=trio.Event)

    async def machine(self, pair: Pair) -> SimDisk:
        """Start b, and kill it at its step; return its disk, in whose place is an empty one."""
        second = await pair.start("b", pair.second())
        await self.step.wait()
        await pair.ground.crash(second)
        disk, pair.ground.disks["b"] = pair.ground.disks["b"], SimDisk()
        return disk


async def served(pair: Pair) -> Broker:
    first = await pair.start("a", pair.first())
    await active(first)
    pair.node_id = bytes(first.node_id)
    return first


async def test_a_copy_that_is_not_whole_has_no_counter_so_an_older_machine_of_that_name_never_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pairs() as pair:
        first, stopped = await served(pair), Stopped()

        async def stuck(self: Follower, *about: Any) -> None:
            stopped.step.set()
            await trio.sleep_forever()

        with monkeypatch.context() as patch:
            patch.setattr(Follower, "_take_joined", stuck)
            old = await stopped.machine(pair)
        found = NodeDirectory(old.mount(), "/data")
        assert found.node_id() == pair.node_id and found.standing().activation == 0
        async with pair.ground.client() as client:
            await client.send("q", b"later")
        # Another machine with the same name.
        second = await pair.start("b", pair.second())
        await pair.in_sync(first)
        await pair.kill(first)
        pair.quorum.heal(pair.quorum.place(pair.node_id).holder)
        await pair.ground.crash(second)
        pair.ground.disks["b"] = old
        second = await pair.start("b", pair.second())
        await trio.sleep(20)
        assert second.state == "waiting" and pair.record.holder == "a"


async def test_a_replica_that_was_told_to_join_and_never_counted_is_left_behind_by_a_higher_counter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pairs() as pair:
        first, stopped = await served(pair), Stopped()
        real = Feeder.heard

        def deaf(self: Feeder, answer: Any, position: int) -> None:
            if answer.kind == "joined":
                stopped.step.set()
            else:
                real(self, answer, position)

        with monkeypatch.context() as patch:
            patch.setattr(Feeder, "heard", deaf)
            old = await stopped.machine(pair)
        assert NodeDirectory(old.mount(), "/data").standing().activation == 1
        async with pair.ground.client() as client:
            await client.send("q", b"later")
        assert pair.figures == (2, ("a",)) and pair.counter("a") == 2
        second = await pair.start("b", pair.second())
        await pair.in_sync(first)
        assert pair.figures == (2, ("a", "b")) and pair.counter("b") == 2
        await pair.kill(first)
        pair.quorum.heal(pair.quorum.place(pair.node_id).holder)
        await pair.ground.crash(second)
        pair.ground.disks["b"] = old
        second = await pair.start("b", pair.second())
        await trio.sleep(20)
        assert second.state == "waiting" and "the counter 1, and the newest one has 2" in second.ha.last_error


async def test_the_quorum_knows_no_replica_before_it_has_the_counter_on_its_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pairs() as pair:
        first, gate = await served(pair), trio.Event()
        real = Follower._take_joined

        async def slow(self: Follower, *about: Any) -> None:
            pair.ground.threads["b"]._gates["remember"] = gate
            await real(self, *about)

        monkeypatch.setattr(Follower, "_take_joined", slow)
        await pair.start("b", pair.second())
        await trio.sleep(2)
        assert pair.figures == (1, ("a",)) and pair.counter("b") == 0 and first.ha.unprotected
        gate.set()
        await pair.in_sync(first)
        assert pair.figures == (1, ("a", "b")) and pair.counter("b") == 1


async def test_a_node_whose_disk_refuses_the_counter_gives_the_lock_to_the_other_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pairs() as pair:
        first, second = await pair.both()
        real = NodeDirectory.remember

        def refuse(self: NodeDirectory, standing: Standing) -> None:
            # That of a, which has served; b has only followed.
            if standing.members == ("a",):
                raise OSError(errno.ENOSPC, "no space left on device")
            real(self, standing)

        monkeypatch.setattr(NodeDirectory, "remember", refuse)
        # Only the two nodes don't hear each other.
        pair.ground.network.cut("node", "node")
        await second.ha.wait_for(phase="active", timeout=240)
        assert first.state == "waiting" and pair.record.holder == "b"


async def test_a_disk_that_hangs_while_the_counter_is_stored_keeps_the_lock_for_a_time_that_is_said() -> None:
    async with pairs() as pair:
        cluster: dict[str, Any] = {"call_timeout": 4.0}
        first = await pair.start("a", pair.first(), cluster=cluster)
        second = await pair.start("b", pair.second(), cluster=cluster)
        await pair.in_sync(first)
        gate = pair.ground.threads["a"].close("remember")
        # The one that serves is to go on alone, and its disk hangs.
        await pair.ground.crash(second)
        began = trio.current_time()
        await trio.sleep(0.5)
        assert pair.record.claimed == 2
        second = await pair.start("b", pair.second(), cluster=cluster)
        assert 3.9 <= await active(second) - began <= 6
        assert "has not stored the counter of 'a' for 4 s" in first.ha.last_error and first.state != "active"
        gate.set()
        pair.ground.threads["a"].open()
        await pair.in_sync(second)


async def test_a_claim_on_a_disk_that_hangs_gives_the_lock_to_the_other_node() -> None:
    async with pairs() as pair:
        cluster: dict[str, Any] = {"call_timeout": 4.0}
        first = await pair.start("a", pair.first(), cluster=cluster)
        second = await pair.start("b", pair.second(), cluster=cluster)
        await pair.in_sync(first)
        await pair.kill(first)
        await trio.sleep(SESSION_S / 2)
        pair.ground.threads["b"].close("remember")
        await trio.sleep(SESSION_S / 2 + 1)
        assert pair.record.claimed == 2 and second.state == "waiting"
        first = await pair.start("a", pair.first(), cluster=cluster)
        await active(first)
        pair.ground.threads["b"].open()
        await pair.in_sync(first)


async def test_a_backup_whose_claim_the_provider_refuses_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pairs() as pair:
        first, second = await pair.both()
        await pair.kill(first)
        refused = 0

        async def refuse(self: MemoryQuorumSession, *about: QuorumRecord) -> bool:
            nonlocal refused
            refused += 1
            raise SettingsError("session", 1, "another one")

        with monkeypatch.context() as patch:
            patch.setattr(MemoryQuorumSession, "compare_and_set", refuse)
            await trio.sleep(20)
        assert second.state == "waiting" and "session" in second.ha.last_error and refused > 1
        await active(second)


@pytest.mark.parametrize("answer", ["silent", "another password", "refused"])
async def test_a_primary_with_an_empty_disk_makes_no_id_before_every_other_place_said_that_it_has_no_store(
    answer: str,
) -> None:
    async with pairs() as pair:
        first, second = await pair.both()
        await pair.kill(first)
        await active(second)
        pair.ground.disks["a"] = SimDisk()
        cluster: dict[str, Any] = {"static_connectors": [url_of("b")]}
        cluster |= {"password": "another"} if answer == "another password" else {}
        if answer == "silent":
            pair.ground.network.cut("node", "node")
        elif answer == "refused":
            # The machine is there, and its broker is not up yet.
            await pair.ground.crash(second)
        first = await pair.start("a", pair.first(), cluster=cluster, node_id=None)
        await trio.sleep(100 if answer == "silent" else 5)
        found = NodeDirectory(pair.ground.disks["a"].mount(), "/data")
        assert (first.state, found.standing().node_id) == ("waiting", "")
        if answer == "refused":
            assert "another node does not say whether it has one" in first.ha.last_error
            second = await pair.start("b", pair.second())
            await pair.in_sync(second)
            assert (second.state, first.state) == ("active", "waiting")
        else:
            assert first.ha.last_error and second.state == "active"


@pytest.mark.slow
async def test_a_role_that_came_back_is_given_back_again_after_twice_as_long_each_time() -> None:
    async with pairs() as pair:
        first, second = await pair.both(allow_failback=True)
        # The primary can follow, and can't reach the quorum.
        lost = pair.quorum.place(pair.node_id).holder
        pair.quorum.cut(lost)
        changes = []
        for _ in range(3):
            await second.ha.wait_for(phase="active", timeout=120)
            began = trio.current_time()
            await second.ha.wait_for(phase="searching", timeout=120)
            changes.append(trio.current_time() - began)
        assert changes[0] < 5 and changes[2] >= changes[1] + 5 >= changes[0] + 5
        pair.quorum.heal(lost)
        await active(first)


async def test_a_replica_that_knows_of_a_later_epoch_than_the_holder_of_the_lock_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with pairs() as pair:
        first = await pair.start("a", pair.peer())
        await active(first)
        directory = NodeDirectory(pair.ground.disks["b"].mount(), "/data")
        directory.enter()
        directory.remember(Standing(epoch=40, activation=70, acted=True))
        directory.leave()
        second = await pair.start("b", pair.peer())
        await trio.sleep(10)
        assert (first.state, first.ha.epoch, second.state) == ("active", 1, "waiting")
        assert "'b' knows of epoch 40 of the node id, and 'a' serves with the lock of the quorum" in caplog.text
