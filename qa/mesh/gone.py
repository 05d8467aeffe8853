"""A node of the simulated mesh that is gone for good: stopped in peace, or killed and never started again.

Its clients, which are on another machine, live on and dial it in vain.  What waits for it elsewhere is routed anew in
the end, and nothing else is dealt to it; what it had stored stands in its journal, which is counted with the others.
"""

from __future__ import annotations

import math
from typing import Any, Final, Protocol

import trio

from meshq.errors import UsageError
from meshq.testing import Swarm
from meshq.testing.history._history import History
from qa.mesh.bridges import MeshBridges
from qa.mesh.node import LINKED_S, MeshNode
from qa.simulation.accounts import FORWARDING
from qa.simulation.workload import SETTINGS

#: The ways to go, the time of it at the earliest, and in how many seconds after that.
WAYS: Final = ("stopped", "killed", "powered_off")
EARLIEST_S: Final = 4.0
WITHIN_S: Final = 15.0
#: Seconds in which a stop must have come to its end, and those in which the others must know that a node is gone.
STOPPED_S: Final = 30.0
KNOWN_S: Final = 4 * SETTINGS["call_timeout"]
GONE: Final = ("left", "away", "down")
#: How a node sees one that is gone in the end, if it tries for ever and if it gives up.
ENDLESS: Final = ("left", "away", "forgotten")
GIVEN_UP: Final = ("down", "forgotten")
GONE_SIGHTS: Final = (
    *(f"gone_{way}" for way in WAYS),
    "gave_back_away",
    "gave_back_down",
)


class Departure(Protocol):
    """The work of a node before it goes for good, in peace."""

    async def prepare(self, node: MeshNode, others: list[MeshNode]) -> None:
        """Do all that a node does before it is stopped for good, beside the others, which stay.

        Checkpoint: always.  Cancellation: the simulation ends.
        """


class MeshGone:
    """The node that goes for good in a seed, and the reaction of the others.

    ``departure``: the work of a node that goes in every seed, and is stopped after that.
    """

    def __init__(
        self,
        swarm: Swarm,
        history: History,
        nodes: list[MeshNode],
        bridges: MeshBridges,
        mode: str,
        *,
        departure: Departure | None = None,
    ) -> None:
        rng = swarm.rng("mesh/gone")
        self._swarm = swarm
        self._history = history
        self._mode = mode
        self._nodes = nodes
        self._bridges = bridges
        goes, way, at_s = rng.choice(nodes), rng.choice(WAYS), EARLIEST_S + WITHIN_S * rng.random()
        #: The node that goes, or has gone; None: all stay.
        self.node: MeshNode | None = goes if swarm.on("mesh.gone") or departure is not None else None
        self._departure = departure
        self._way = way if departure is None else "stopped"
        self._at_s = at_s
        self._node_id = ""
        #: It has gone.
        self.done = False
        for sight in GONE_SIGHTS:
            swarm.count(f"seen.{sight}", 0)

    @property
    def due(self) -> bool:
        """Whether it goes now."""
        return self.node is not None and not self.done and trio.current_time() >= self._at_s

    async def go(self) -> None:
        """The node goes, for good.  Checkpoint: always.  Cancellation: the simulation ends."""
        node = self.node
        assert node is not None
        await node.serving()
        if self._departure is not None:
            await self._departure.prepare(node, [other for other in self._nodes if other is not node])
        self._node_id = node.serving_core.settings.node_id.hex()
        self._history.note(f"{node.place} goes for good: {self._way}")
        self._swarm.count(f"seen.gone_{self._way}")
        if self._way == "stopped":
            node.stop()
            with trio.move_on_after(STOPPED_S):
                while not node.node.life.dead:  # noqa: ASYNC110 - nobody tells
                    await trio.sleep(0.1)
            node.left("stops that have no end", int(not node.node.life.dead))
        if self._way == "powered_off":
            node.node.power_off()
        node.node.kill()
        self.done = True
        self._bridges.gone = node.place
        for other in self._nodes:
            other.given_up = self._node_id
        self._history.ended(node.place)

    @property
    def killed(self) -> bool:
        """Whether the node goes without an orderly stop."""
        return self._way != "stopped"

    @property
    def identity(self) -> dict[str, str]:
        """The id of the node that is gone, with its name."""
        return {self._node_id: self.node.place} if self.done and self.node is not None else {}

    def everybody(self, nodes: list[MeshNode]) -> list[MeshNode]:
        """Return these nodes, and the node that is gone."""
        return [*nodes, self.node] if self.done and self.node is not None else nodes

    async def known(self, node: MeshNode) -> str:
        """Wait until a node knows that the other one is gone, for good if attempts end, and how.

        Checkpoint: always.  Cancellation: nothing has changed.
        """
        last = ENDLESS if math.isinf(node.attempts) else GIVEN_UP
        with trio.move_on_after(KNOWN_S):
            while self.state(node) not in last:  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.1)
        return self.state(node)

    def state(self, node: MeshNode) -> str:
        """How a node sees the one that is gone."""
        place = "" if self.node is None else self.node.place
        return node.states().get(place, "")

    def _is_for_it(self, queue: str) -> bool:
        return self.done and queue.startswith(FORWARDING) and queue.endswith(self._node_id)

    async def dealt(self, node: MeshNode) -> int:
        """How many messages this life of a node has dealt to the one that is gone.

        Checkpoint: always.  Cancellation: nothing has changed.
        """
        number = 0
        async with node.client() as client:
            for queue in await client.queues():
                if self._is_for_it(queue):
                    number += (await client.queue(queue)).added
        return number

    async def judge(self, node: MeshNode, before: int) -> None:
        """Write down how much was dealt to the node that is gone since there was ``before``.

        Checkpoint: always.  Cancellation: nothing is written down.
        """
        self._history.dealt(node.place, self._mode, self.state(node), await self.dealt(node) - before)

    async def rescue(self, nodes: list[MeshNode]) -> None:
        """Route anew the messages that wait at these nodes for the node that is gone.

        Checkpoint: always.  Cancellation: the simulation ends.
        """
        for node in nodes:
            for queue, last in node.lasts().items():
                # Behind this stands what is given back.
                self._history.expected.overtaken(node.place_of(queue, node.place), last)
        for node in nodes:
            await self._rescue(node)

    async def _rescue(self, node: MeshNode) -> None:
        state = await self.known(node)
        async with node.client() as client:
            waiting = [queue for queue in await client.queues() if self._is_for_it(queue)]
            if not waiting:
                # It was never linked with it in this life or an earlier one.
                return
            if state == "away":
                # It may have stored what it could not confirm; so it takes a word more.
                try:
                    await client.give_back(self._node_id)
                except UsageError:
                    pass
                else:
                    node.left("messages of a node that is only away given back without force", 1)
            try:
                moved = await client.give_back(self._node_id, force=state == "away")
            except UsageError:
                # A node that was started again, and has not reached the other one since, can't tell how it has gone.
                if state != "forgotten":
                    raise
                moved = await client.give_back(self._node_id, force=True)
            if state in ("away", "down") and self.node is not None:
                self._swarm.count(f"seen.gave_back_{state}", int(moved > 0))
                self._history.expected.doubtful(self.node.place)
            left: Any = sum([(await client.queue(queue)).ready for queue in waiting])
            node.left("messages kept for a node that is gone", left)


async def linked(nodes: list[MeshNode]) -> None:
    """Wait until these are linked, and write down who is not.

    Checkpoint: always.  Cancellation: the simulation ends.
    """
    for node in nodes:
        node.left("nodes that it is not linked with", await node.linked(len(nodes), LINKED_S))
