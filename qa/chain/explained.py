"""The causes that nodes of the simulated chain name for messages that stay, while a client consumes at one node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

import trio

from meshq.statistics import StuckMessages

EXPLAINED_SIGHTS: Final = ("stuck_hop_limit", "stuck_no_redistribution")
#: Seconds after which messages that do not move are stuck.
STUCK_S: Final = 2.0
#: Seconds in which a node has to have found the cause.
PATIENCE_S: Final = 30.0


class StayingNode(Protocol):
    """A node whose messages stay."""

    name: str

    async def waiting(self, queue: str) -> int:
        """Return the messages that wait in a queue of the node.  Checkpoint: always."""

    def stuck(self) -> Sequence[StuckMessages]:
        """The messages that the node has found to be stuck."""


async def explain(
    queue: str,
    nodes: Sequence[StayingNode],
    consumer: AbstractAsyncContextManager[Any],
    causes: Callable[[StayingNode], Sequence[str]],
) -> tuple[dict[str, int], list[str]]:
    """Return the causes that nodes have found, and how often, and a text for each node with a wrong cause.

    A client consumes at one node.  ``nodes``: all with the queue but that one.  ``causes``: one of these a node has to
    find; an empty one: it may find none, since it knows no way to the consumer; without any it has to find none.

    Checkpoint: always.
    """
    found, wrong = dict.fromkeys(EXPLAINED_SIGHTS, 0), []
    async with consumer:
        for node in [node for node in nodes if await node.waiting(queue)]:
            allowed = causes(node)
            said: set[str] = set()
            with trio.move_on_after(PATIENCE_S if allowed and "" not in allowed else 4 * STUCK_S):
                while not said:
                    await trio.sleep(STUCK_S / 4)
                    said = {one.cause for one in node.stuck() if one.queue == queue}
            for cause in said & {*allowed}:
                found[f"stuck_{cause}"] += 1
            if (said or {""}) - {*(allowed or ("",))}:
                wrong.append(
                    f"{node.name} explains what stays in {queue} by {sorted(said)}, and not by one of {allowed}"
                )
    return found, wrong
