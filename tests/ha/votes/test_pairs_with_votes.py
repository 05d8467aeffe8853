"""A pair by replication in a cluster: who takes over, and who goes on alone, is decided by the votes of the others."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio

from meshq import Broker, MajorityVote, MeshqError, Message, ReplicationBackup, ReplicationPrimary
from meshq.ha._store_claim import StoreClaim
from meshq.ha.replication._node_directory import NodeDirectory
from meshq.ha.replication._standing_format import Standing
from meshq.ha.votes._voter import BoxFile
from tests.ha.test_replication_brokers import bodies
from tests.ha.voted import TTL_S, VotingMachines, voting_machines

pytestmark = pytest.mark.slow

#: Votes that are soon cut, and soon held again.
QUICK = MajorityVote(vote_retries=math.inf, vote_retry_wait=1.0, quorum_vote_wait=1.0)


async def until_role(broker: Broker, phase: str) -> None:
    """Wait for a phase, for a minute at most."""
    await broker.ha.wait_for(phase=phase, timeout=60)


def serving(ground: VotingMachines) -> list[str]:
    """Return the nodes of the pair that serve."""
    return [name for name in ("a", "b") if ground.brokers[name].state == "active"]


async def test_a_backup_takes_over_once_it_reaches_more_than_half_of_the_others_and_half_is_not_enough() -> None:
    """F28, F29: with four others, one and two are too few; the primary that is cut off confirms nothing meanwhile."""
    async with voting_machines("cdef") as (ground, nursery):
        first, second = await ground.form(nursery, QUICK)
        async with ground.talker("a", call_timeout=3) as near, ground.talker("a", "b") as client:
            await client.send("q", Message(b"both"))
            for other in "bcdef":
                ground.part("a", other)
            ground.part("b", "d", "e", "f")
            with pytest.raises(MeshqError):
                await near.send("q", Message(b"alone"))
            await until_role(second, "voting")
            await trio.sleep(5)
            ground.network.heal("b", "d")
            ground.network.heal("d", "b")
            await trio.sleep(8)
            assert (serving(ground), second.ha.phase) == (["a"], "voting")
            held = ground.votes["b"]
            assert {(one.question, one.asked, one.needed, one.granted) for one in held} == {("failed", 4, 3, False)}
            assert {one.yes for one in held} == {1, 2}
            ground.network.heal("b", "e")
            ground.network.heal("e", "b")
            await until_role(second, "active")
            assert (ground.votes["b"][-1].yes, ground.votes["b"][-1].granted) == (3, True)
            ground.network.heal()
            await client.send("q", Message(b"later"))
            await until_role(first, "in_sync")
            assert (second.ha.epoch, first.state) == (2, "waiting")
            assert await bodies(client, 2) == [b"both", b"later"]


async def test_a_primary_goes_on_while_its_backup_waits_and_the_backup_is_one_again_later() -> None:
    """F29: the primary is never interrupted; F28: whoever is asked first by more than half goes on, here the backup."""
    async with voting_machines("cde") as (ground, nursery):
        first, second = await ground.form(nursery, QUICK)
        async with ground.talker("a", "b") as client:
            ground.part("b", "a", "c", "d")
            began = trio.current_time()
            await client.send("q", Message(b"1"))
            # Held for the call_timeout of the slow replica, and the vote.
            assert trio.current_time() - began < 2 * TTL_S + 5
            assert [(one.question, one.granted) for one in ground.votes["a"]] == [("stay", True)]
            await trio.sleep(10)
            assert (serving(ground), first.ha.unprotected, second.ha.phase) == (["a"], True, "voting")
            assert not any(one.granted for one in ground.votes["b"])
            ground.network.heal()
            await until_role(second, "in_sync")
            assert (first.ha.epoch, first.state, first.ha.unprotected) == (1, "active", False)
            # Now only the two are parted, and the primary has nothing to confirm.
            ground.part("a", "b")
            await until_role(second, "active")
            await trio.sleep(10)
            assert (serving(ground), second.ha.epoch) == (["b"], 2)
            await client.send("q", Message(b"2"))
            ground.network.heal()
            await until_role(first, "in_sync")
            assert await bodies(client, 2) == [b"1", b"2"]


async def test_a_primary_that_is_to_ask_steps_back_without_a_majority_and_serves_again_with_one() -> None:
    async with voting_machines("cd") as (ground, nursery):
        first, second = await ground.form(nursery, QUICK, vote_on_replication_failure=True)
        ground.part("a", "b", "c", "d")
        ground.part("b", "c", "d")
        await first.ha.wait_for(phase="isolated", timeout=60)
        await trio.sleep(0.1)
        assert first.state == "waiting"
        assert [(one.question, one.needed, one.granted) for one in ground.votes["a"]][:1] == [("stay", 2, False)]
        await trio.sleep(10)
        assert serving(ground) == []
        for other in "cd":
            ground.network.heal("a", other)
            ground.network.heal(other, "a")
        await first.ha.wait_for(phase="active", timeout=60)
        assert (first.ha.epoch, second.ha.phase) == (2, "voting")
        ground.network.heal()
        await until_role(second, "in_sync")


async def test_a_primary_that_is_started_again_asks_first_and_does_not_serve_beside_the_node_that_took_over() -> None:
    async with voting_machines("cd") as (ground, nursery):
        first, second = await ground.form(nursery, QUICK)
        ground.part("a", "b")
        await ground.crash(first)
        await until_role(second, "active")
        again = await ground.run(nursery, "a", ReplicationPrimary(quorum=QUICK, wait_for_activation=False))
        await again.ha.wait_for(phase="isolated", timeout=120)
        assert serving(ground) == ["b"]
        # The voters remember what they have said also when they are started again.
        for name in "cd":
            await ground.crash(ground.brokers[name])
            await ground.run(nursery, name)
        await trio.sleep(15)
        assert serving(ground) == ["b"]
        ground.network.heal()
        await until_role(again, "in_sync")
        # Both are lost, and the one that was the replica does not come back: the other one may serve.
        await ground.crash(second)
        await ground.crash(again)
        await ground.run(nursery, "b", ReplicationPrimary(quorum=MajorityVote()))
        assert serving(ground) == ["b"]


@pytest.mark.parametrize("stays", [False, True])
async def test_a_primary_that_can_not_store_that_it_goes_on_alone_confirms_nothing_until_it_can(
    monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    async with voting_machines("c") as (ground, nursery):
        first, second = await ground.form(nursery, QUICK, vote_on_replication_failure=stays)
        real, failed = NodeDirectory.remember, list[int]()

        def remember(self: NodeDirectory, standing: Standing) -> None:
            if standing.members == ("a",) and len(failed) < 8:
                failed.append(standing.number)
                raise OSError(28, "No space left on device")
            real(self, standing)

        monkeypatch.setattr(NodeDirectory, "remember", remember)
        ground.part("b", "a", "c")
        began = trio.current_time()
        async with ground.talker("a", call_timeout=30) as client:
            await client.send("q", Message(b"1"))
        assert len(failed) == 8 and trio.current_time() - began > 8
        # It has asked once, and has won: it gives nothing back, and its replica comes again once that is stored.
        assert (first.state, first.ha.epoch, [one.granted for one in ground.votes["a"]]) == ("active", 1, [True])
        assert second.ha.phase == "voting"
        ground.network.heal()
        await until_role(second, "in_sync")


async def test_a_replica_that_has_won_takes_over_once_its_disk_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with voting_machines("c") as (ground, nursery):
        first, second = await ground.form(nursery, QUICK)
        real, failed = NodeDirectory.remember, list[int]()

        def remember(self: NodeDirectory, standing: Standing) -> None:
            if standing.members == ("b",) and len(failed) < 3:
                failed.append(standing.number)
                raise OSError(28, "No space left on device")
            real(self, standing)

        monkeypatch.setattr(NodeDirectory, "remember", remember)
        await ground.crash(first)
        await until_role(second, "active")
        assert (len(failed), [one.granted for one in ground.votes["b"]]) == (3, [True])


@pytest.mark.parametrize("unsure", [False, True])
async def test_a_replica_that_has_won_leaves_the_role_to_its_primary_where_its_disk_has_nothing_of_it(
    unsure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it can't be known what the disk has, nobody else may have the vote, in no life of this node."""
    async with voting_machines("c") as (ground, nursery):
        first, second = await ground.form(nursery, QUICK)
        real, bad = NodeDirectory.remember, [True]

        def remember(self: NodeDirectory, standing: Standing) -> None:
            if standing.members == ("b",) and bad:
                self.is_unsure = self.is_unsure or unsure
                raise OSError(30, "Read-only file system")
            real(self, standing)

        monkeypatch.setattr(NodeDirectory, "remember", remember)
        await ground.crash(first)
        await until_vote(ground, "b")
        first = await ground.run(nursery, "a", ReplicationPrimary(quorum=QUICK, wait_for_activation=False))
        if unsure:
            with pytest.raises(TimeoutError):
                await first.ha.wait_for(phase="active", timeout=20)
            bad.clear()
            await until_role(second, "active")
            await until_role(first, "in_sync")
        else:
            await until_role(first, "active")
            assert serving(ground) == ["a"]
            bad.clear()
            await until_role(second, "in_sync")


async def until_vote(ground: VotingMachines, name: str) -> None:
    """Wait until a node has won a vote."""
    with trio.fail_after(60):
        while not any(one.granted for one in ground.votes[name]):  # noqa: ASYNC110 - it is looked at
            await trio.sleep(0.1)


async def test_a_stop_that_can_not_be_stored_is_told_to_nobody_and_the_replica_asks_as_after_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with voting_machines("cde") as (ground, nursery):
        first, second = await ground.form(nursery, QUICK)
        real = NodeDirectory.remember

        def remember(self: NodeDirectory, standing: Standing) -> None:
            if not standing.acted:
                raise OSError(5, "no bytes")
            real(self, standing)

        with monkeypatch.context() as patch:
            patch.setattr(NodeDirectory, "remember", remember)
            ground.part("b", "c", "d", "e")
            await first.stop()
        await until_role(second, "voting")
        assert serving(ground) == []
        ground.network.heal()
        await until_role(second, "active")


async def test_a_stop_is_on_the_disk_before_the_replica_hears_of_it_and_voters_hear_of_it_until_they_know() -> None:
    async with voting_machines("cde") as (ground, nursery):
        first, second = await ground.form(nursery, QUICK)
        ground.part("b", "c", "d", "e")
        await first.stop()
        await until_role(second, "active")
        assert not NodeDirectory(ground.disks["a"].mount(), "/data").standing().acted
        ground.network.heal()
        await trio.sleep(5)
        number = NodeDirectory(ground.disks["b"].mount(), "/data").standing().number
        boxes = [BoxFile(ground.disks[name].mount(), "/data", name).read() for name in "cde"]
        known = [(one.number, one.holder) for box in boxes if box is not None for one in box.given.values()]
        # More than half know it; the last one is not waited for.
        assert len(known) > 1 and set(known) == {(number, "b")}


async def test_voters_are_told_of_a_claim_and_the_other_node_is_not_elected_beside_it() -> None:
    async with voting_machines("cde") as (ground, nursery):
        first, second = await ground.form(nursery, QUICK)
        await ground.crash(first)
        await ground.crash(second)
        StoreClaim(ground.disks["b"].mount(), "/data").mark(1)
        await until_role(await ground.run(nursery, "b", ReplicationBackup(quorum=QUICK)), "active")
        assert serving(ground) == ["b"]
        ground.part("a", "b")
        again = await ground.run(nursery, "a", ReplicationPrimary(quorum=QUICK, wait_for_activation=False))
        await again.ha.wait_for(phase="isolated", timeout=120)
        await trio.sleep(5)
        assert serving(ground) == ["b"]
        assert not any(one.granted for one in ground.votes["a"])


@pytest.mark.parametrize("at_once", [True, False])
async def test_another_pair_goes_on_to_vote_after_a_change_of_its_role(at_once: bool) -> None:
    """The node that gave its role up votes until its successor is known, and the successor from then on."""
    async with voting_machines("cd") as (ground, nursery):
        pairs: list[dict[str, Any]] = [{"group_name": name, "quorum": QUICK} for name in ("ab", "cd")]
        third = await ground.run(nursery, "c", ReplicationPrimary(**pairs[1]), partner="d")
        fourth = await ground.run(nursery, "d", ReplicationBackup(**pairs[1]), partner="c")
        await ground.run(nursery, "a", ReplicationPrimary(**pairs[0]))
        second = await ground.run(nursery, "b", ReplicationBackup(**pairs[0]))
        for backup in (second, fourth):
            await until_role(backup, "in_sync")
        await trio.sleep(5)
        await third.ha.fail_over()
        await until_role(fourth, "active")
        if not at_once:
            await trio.sleep(20)
            ground.part("c", "a", "b", "d")
        ground.part("a", "b", "c", "d")
        await until_role(second, "active")
        assert (ground.votes["b"][-1].asked, ground.votes["b"][-1].granted) == (1, True)
