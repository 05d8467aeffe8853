"""The search for the names of which a node is the arbiter, in steps: a node may hold the pins of many groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

import trio

from meshq.cluster.grouping._arbiter_machine import Name, arbiter_of

#: Members that are looked at in one step, over all its names: some milliseconds.
STEP_MEMBERS: Final = 3_000


async def decided_by(node: str, names: Iterable[Name], members: Collection[str]) -> list[Name]:
    """Return those names of which a node is the arbiter among some members.

    ``names`` must stay as they are meanwhile.

    Checkpoint: after each step, if there are more.
    Cancellation: nothing has changed.
    """
    found: list[Name] = []
    left, rows = iter(names), STEP_MEMBERS // len(members) + 1
    while step := list(islice(left, rows)):
        found += [name for name in step if arbiter_of(name, members) == node]
        if len(step) == rows:
            await trio.lowlevel.checkpoint()
    return found
