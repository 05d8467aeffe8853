"""The search for the names of which a node is the arbiter: it leaves the others their turns."""

from __future__ import annotations

import pytest
import trio

from meshq.cluster.grouping._arbiter_machine import arbiter_of
from meshq.cluster.grouping._steps import STEP_MEMBERS, decided_by


async def turns_during(count: int, members: str) -> int:
    """How often another task has its turn while so many names are looked at."""
    names, turns = [("q", str(number)) for number in range(count)], 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        found = await decided_by("a", names, members)
        nursery.cancel_scope.cancel()
    assert found == [name for name in names if arbiter_of(name, members) == "a"]
    return turns


@pytest.mark.parametrize("members", ["ab", "abcdefghij"])
async def test_many_names_are_looked_at_in_steps_that_are_shorter_among_more_members(members: str) -> None:
    assert await turns_during(5 * (STEP_MEMBERS // len(members) + 1), members) >= 3


async def test_a_few_names_are_looked_at_in_one_step() -> None:
    assert await turns_during(STEP_MEMBERS // 3, "abc") == 0
