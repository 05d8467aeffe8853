"""A queue of the nodes of a simulated mesh that a cursor has on all of them but one, where a consumer is.

Messages are dealt to the consumer, or to all nodes, as the seed says, and what waits goes there, too: but nothing that
a cursor has may go on, whoever is lost meanwhile.  In the end nothing is left but groups whose arbiter is away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from meshq.broker.queue._run import GONE, QueueRun
from meshq.settings import AddressSettings
from meshq.testing import Swarm
from meshq.testing.history._history import History
from qa.mesh.bursts.groups import without_arbiter
from qa.mesh.node import MeshNode
from qa.simulation.workload import Actor, Dial, Scene, Sender
from qa.simulation.workload_cursor import TAPE, TAPE_GROUPS, Replayer, Tape, TapeTraffic
from qa.simulation.workload_receive import Queues, Receiver

#: What all replayers together have done: ``mesh_tapes``: there are some; ``tapes_spread``: more than one had messages.
TAPES_SIGHTS: Final = ("mesh_tapes", "tapes_acked", "tapes_replayed", "tapes_restarted", "tapes_spread")


class MeshTapes:
    """The cursors of one seed: the nodes where messages are sent to the queue; empty: there is none."""

    def __init__(self, swarm: Swarm, names: tuple[str, ...], *, drained: bool) -> None:
        """``drained``: one of the nodes hands its messages over, for which no queue may have a cursor."""
        self._swarm = swarm
        rng = swarm.rng("mesh/tapes")
        #: The node with the consumer, and two others.
        self._consumes, *senders = rng.sample(names, 3)
        self._senders = senders if swarm.on("mesh.tapes") and not drained else []
        about = AddressSettings(redistribution_delay=rng.choice((0.0, 1.0, None)))
        #: The queue with the settings of its address, if there is one.
        self.queues: dict[str, AddressSettings] = {TAPE: about} if self._senders else {}
        self._tapes: list[Tape] = []
        # The groups that may wait at the consumer in the end.
        self._held_up: list[str] = []

    def known(self, history: History) -> None:
        """Tell the history the queue whose messages are numbered when they are due."""
        history.expected.moves(*self.queues)

    def actors(self, scene: Scene, node: str, dial: Dial) -> list[Actor]:
        """Return the replayer of a node, and the sender to its queue."""
        if not self._senders:
            return []
        rng, name = self._swarm.rng, f"replayer-{node}"
        if node == self._consumes:
            name = f"tape-receiver-{node}"
            return [Receiver(scene, name, rng(f"actor/{name}"), dial, Queues((TAPE,), node))]
        tape = Tape(scene.history, node=node)
        self._tapes.append(tape)
        actors: list[Actor] = [Replayer(scene, name, rng(f"actor/{name}"), dial, tape)]
        if node in self._senders:
            name = f"taping-{node}"
            actors.append(Sender(scene, name, rng(f"actor/{name}"), dial, TapeTraffic(scene.history)))
        return actors

    def drained(self, nodes: list[MeshNode]) -> list[str]:
        """The queue, if it has to become empty: none of its groups waits for an arbiter that is away."""
        self._held_up = without_arbiter(nodes, TAPE, TAPE_GROUPS) if self.queues else []
        return [] if self._held_up else [*self.queues]

    def judge(self, nodes: list[MeshNode]) -> None:
        """Count the messages left over although their groups need not wait, and the sights of all replayers.

        Groups wait only at the consumer: nothing holds up a cursor.
        """
        for node in nodes if self._held_up else ():
            queue = node.serving_core.router.queues.get(TAPE)
            if queue is not None:
                may_wait = self._held_up if node.place == self._consumes else ()
                node.left(f"messages in {TAPE} that nothing holds up", outside_of(may_wait, queue.all_runs()))
        self._swarm.count("seen.mesh_tapes", int(bool(self._tapes)))
        for sight in ("acked", "replayed", "restarted"):
            self._swarm.count(f"seen.tapes_{sight}", sum(tape.met[f"cursor_{sight}"] for tape in self._tapes))
        self._swarm.count("seen.tapes_spread", int(sum(bool(tape.seen) for tape in self._tapes) > 1))


def outside_of(groups: Collection[str], runs: Iterable[QueueRun]) -> int:
    """Count the messages of runs that are of none of the groups."""
    return sum(
        state != GONE and (view.groups is None or view.groups[row] not in groups)
        for view in runs
        for row, state in enumerate(view.states)
    )
