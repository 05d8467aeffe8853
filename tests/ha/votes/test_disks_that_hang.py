"""A node of a pair that votes, and whose disk hangs as it hands over."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
import pytest
import trio

from meshq import abc
from meshq.ha.replication._node_directory import NodeDirectory
from tests.ha.replicated import GatedThreads
from tests.ha.voted import VotingMachines
from tests.ha.votes.test_pairs_with_votes import QUICK

pytestmark = pytest.mark.slow


class HangingThreads(GatedThreads):
    """Threads whose calls are waited for, as those of a real system."""

    async def run(self, function: Any, *arguments: object, pool: str = "default") -> Any:
        """Call a function."""
        with trio.CancelScope(shield=True):
            return await super().run(function, *arguments, pool=pool)


class HangingMachines(VotingMachines):
    """Machines of which one has a disk that hangs."""

    def __init__(self, voters: str, hangs: str = "a") -> None:
        super().__init__(voters)
        self.hanging = HangingThreads()
        self._hangs = hangs

    def env(self, name: str = "client") -> abc.Env:
        """Return the outside of a node, or of a client."""
        found = super().env(name)
        return attrs.evolve(found, threads=self.hanging) if name == self._hangs else found


async def test_a_disk_that_hangs_as_a_node_stops_keeps_its_replica_from_nothing() -> None:
    ground = HangingMachines("c")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ground.network.run)
        first, second = await ground.form(nursery, QUICK)
        ground.hanging.close("remember")
        nursery.start_soon(first.stop)
        with trio.move_on_after(15):
            await second.ha.wait_for(phase="active", timeout=20)
        # No last word was said: it has asked.
        took = second.state, [one.granted for one in ground.votes["b"]][-1:]
        ground.hanging.open()
        await trio.sleep(5)
        assert (*took, first.state) == ("active", [True], "stopped")
        assert NodeDirectory(ground.disks["a"].mount(), "/data").standing().acted
        nursery.cancel_scope.cancel()


async def test_a_node_that_was_ordered_to_hand_over_keeps_its_replica_from_nothing_as_its_disk_hangs() -> None:
    ground = HangingMachines("c")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ground.network.run)
        first, second = await ground.form(nursery, QUICK)
        ground.hanging.close("remember")
        nursery.start_soon(partial(first.ha.fail_over, force=True))
        with trio.move_on_after(15):
            await second.ha.wait_for(phase="active", timeout=20)
        took = second.state, [one.granted for one in ground.votes["b"]][-1:]
        ground.hanging.open()
        assert took == ("active", [True])
        await first.ha.wait_for(phase="in_sync", timeout=60)
        nursery.cancel_scope.cancel()


async def test_a_voter_whose_disk_is_slow_gives_signs_of_life_and_its_vote() -> None:
    ground = HangingMachines("c", hangs="c")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ground.network.run)
        first, second = await ground.form(nursery, QUICK)
        ground.hanging.close("write")
        try:
            await ground.crash(first)
            # Longer than the third of a silence after which a node asks whether the other one is there.
            await trio.sleep(1.5)
            assert second.state == "waiting"
        finally:
            ground.hanging.open()
        await second.ha.wait_for(phase="active", timeout=20)
        nursery.cancel_scope.cancel()
