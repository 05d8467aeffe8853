"""A simulated pair by replication that asks a quorum: nodes are cut off, both are down, and start in any order."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import trio

from meshq import ConnectionBrokenError
from meshq.abc import QuorumProvider, QuorumRecord, QuorumSession
from meshq.errors import caused
from meshq.ha.quorum import SessionBlock
from meshq.ha.replication import NodeDirectory, _joined
from meshq.testing import MemoryQuorum, Simulation, SimulationResult
from meshq.testing._quorum import MemoryQuorumSession
from meshq.testing.disk._tree import Tree
from qa.ha.clients import PairError
from qa.ha.replicated import (
    DURATION_S,
    LIMIT_S,
    ReplicaMember,
    ReplicatedStage,
    run_pair,
)
from qa.ha.replicated_faults import FAULTS, both_down, draw_faults
from qa.simulation.one_run import run_scenario
from qa.simulation.scenario import Outcome

#: Loaded before a simulation begins: no file is opened in it.
LOADED: Final = _joined.joined
#: Seconds of a session, and the part of it for which a renewal holds.
SESSION_S: Final = 3.0
PERCENT: Final = 33.0
#: Seconds for which a call of the quorum is under way, each way.
DELAY_S: Final = 0.02
#: A pause, in sessions, that costs no role: just below a third; and one that costs it.
SHORT: Final = (0.29, 0.31)
LONG: Final = (1.0, 1.3)
#: Seconds after a short pause in which the role would be lost because of it.
AFTER_S: Final = 0.3
#: The share of the changes of a record whose answer is lost, in one run out of two.
LOST: Final = 0.1
#: The share of the runs in which the nodes are peers.
PEERS: Final = 0.4
#: The faults of one node, and those of this simulation.
PROVIDED: Final = {"both_down": 4, "cut_off": 5, "partition": 3, "short_pause": 3, "long_pause": 2}
PROVIDED_FAULTS: Final[Mapping[str, int]] = {**FAULTS, **PROVIDED}
#: What the fixed seeds have to have seen, each at least once.
PROVIDED_SIGHTS: Final = (
    *("takeover", "handed_over", "failback", "stopped", "started", "synced", "lease_lost", "large", "transaction"),
    *("peers", "in_doubt", "refused", "foreign_error", "half_claimed", "old_machine", "short_pause", "scaled_down"),
)
#: The share of the runs in which a machine is replaced under its name, and comes back.
REPLACED: Final = 0.4
#: Seconds for which a step of that is waited for, and for which the old machine runs.
STEP_S: Final = 8.0
OLD_S: Final = SESSION_S + 2.0
#: Seconds between two looks at what is waited for.
LOOK_S: Final = 0.05


class WatchedQuorum(MemoryQuorum):
    """A quorum in memory whose answers take time, or are lost, and whose records are looked at."""

    def __init__(self, stage: ProvidedStage) -> None:
        super().__init__(session=SESSION_S, session_percent=PERCENT)
        self.stage = stage
        self.rng: random.Random = stage.simulation.swarm.rng("quorum")
        self.loses = self.rng.random() < 0.5
        self.wrong = ""
        #: Told when a change of a record is half done, which it stays; None: changes are completed.
        self.half: trio.Event | None = None
        # By chance of its own, so that the other draws stay.
        self._errors: random.Random = stage.simulation.swarm.rng("errors of the quorum")

    def failure(self, text: str) -> Exception:
        """Make the error of a call whose outcome is not known; a provider may raise any."""
        self.stage.see("in_doubt")
        if self._errors.random() < 0.5:
            return caused(ConnectionBrokenError(text, outcome="unknown"), None)
        self.stage.see("foreign_error")
        return self._errors.choice((OSError(text), ValueError(text), KeyError(text)))

    def stored(self, old: QuorumRecord, new: QuorumRecord) -> None:
        """Look at a record that takes the place of another one."""
        self.stage.notes.note(f"record {new}")
        grown = new.epoch >= old.epoch and new.sequence >= old.sequence and new.claimed >= old.claimed
        if not grown or new.claimed > old.claimed + 1:
            self.wrong = self.wrong or f"H5: {new} takes the place of {old}"


class WatchedSession(MemoryQuorumSession):
    """The part of a node in such a quorum."""

    def __init__(self, quorum: WatchedQuorum, node_id: bytes, instance: bytes) -> None:
        super().__init__(quorum, quorum.place(node_id), instance)
        self._watched = quorum

    async def _ask(self) -> None:
        await trio.sleep(self._watched.rng.uniform(0, DELAY_S))
        await super()._ask()

    async def compare_and_set(self, expected: QuorumRecord, new: QuorumRecord) -> bool:
        """Store a record in the place of another one; the answer may be lost."""
        watched = self._watched
        if watched.half is not None and new.sequence > expected.sequence:
            # The counter is on the disk of the node, and the quorum does not hear it.
            watched.half.set()
            await trio.sleep_forever()
        lost = watched.loses and watched.rng.random() < LOST
        if lost and watched.rng.random() < 0.5:
            raise watched.failure("the question is lost")
        done = await super().compare_and_set(expected, new)
        if done:
            watched.stored(expected, new)
        await trio.sleep(watched.rng.uniform(0, DELAY_S))
        if lost:
            raise watched.failure("the answer is lost")
        return done


class MemberQuorum(QuorumProvider):
    """The quorum, as one node asks it, which tells the present life of the node."""

    def __init__(self, quorum: WatchedQuorum) -> None:
        self._quorum = quorum
        #: The present life of the node.
        self.instance: bytes = b""
        self.cut: bool = False

    def session(self, node_id: bytes, instance: bytes) -> AbstractAsyncContextManager[QuorumSession]:
        """The part of a node in the quorum."""
        self.instance = instance
        self.reach(cut=self.cut)
        return SessionBlock(WatchedSession(self._quorum, node_id, instance))

    def reach(self, *, cut: bool) -> None:
        """Cut the node off from the quorum, or end that."""
        self.cut = cut
        if cut:
            self._quorum.cut(self.instance)
        else:
            self._quorum.heal(self.instance)


class ProvidedStage(ReplicatedStage):
    """A run with a quorum."""

    any_order = True
    sights = PROVIDED_SIGHTS
    faults = PROVIDED_FAULTS

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.quorum = WatchedQuorum(self)
        self.parts = {member.name: MemberQuorum(self.quorum) for member in self.members}
        #: The node that serves and stands still for a moment; None: there is none.
        self.paused: ReplicaMember | None = None
        self.wrong = ""
        self.peers = self.rng.random() < PEERS
        if self.peers:
            self.see("peers")
            for member in self.members:
                member.first = True

    def about(self, member: ReplicaMember) -> Mapping[str, Any]:
        """Return settings of the policy of a node."""
        peers = {"coordination_id": "pair"} if self.peers else {}
        return {"quorum": self.parts[member.name], **peers}

    def look_at(self, member: ReplicaMember) -> None:
        """See whether a node is refused."""
        if member.broker is not None and "not among" in member.broker.ha.last_error:
            self.see("refused")

    def happened(self, member: ReplicaMember, kind: str, event: Any) -> None:
        """Note a notification of a node."""
        super().happened(member, kind, event)
        if member is self.paused and kind == "role_changed" and event.reason == "lease_lost":
            self.wrong = f"H7: {member.name} has lost its role in epoch {event.epoch} by a pause that is too short"

    def check(self, left: list[str]) -> None:
        """Check acts, records and the accounts of the clients.  Raises: PairError."""
        if self.acts.stale:
            at, name, epoch, later = self.acts.stale[0]
            raise PairError(f"H3: at {at:.4f} {name} acts in epoch {epoch}, after an act in epoch {later}")
        super().check(left)
        if wrong := self.quorum.wrong or self.wrong:
            raise PairError(wrong)


async def provided_scenario(simulation: Simulation) -> Outcome:
    """Run a pair with a quorum under faults; the checkers follow."""
    stage = ProvidedStage(simulation)
    return await run_pair(stage, lambda _: _faults(stage))


async def _faults(stage: ProvidedStage) -> None:
    try:
        # By chance of its own, so that the other draws stay.
        if stage.simulation.swarm.rng("old machine").random() < REPLACED:
            await _replace(stage)
        await draw_faults(stage, (0.2, 2.0), OWN_FAULTS)
    finally:
        for part in stage.parts.values():
            part.reach(cut=False)


async def _both_down(stage: ProvidedStage, member: ReplicaMember) -> None:
    """Kill both, the one up to 4 s after the other, and start them in any order."""
    await both_down(stage, member, (4.0, SESSION_S + 1))


async def _cut_off(stage: ProvidedStage, member: ReplicaMember) -> None:
    """Cut a node off from the quorum, for less and for more than its session."""
    part = stage.parts[member.name]
    part.reach(cut=True)
    await trio.sleep(stage.rng.uniform(0.1, 2 * SESSION_S))
    part.reach(cut=False)


async def _partition(stage: ProvidedStage, member: ReplicaMember) -> None:
    """Cut the nodes off from each other, and by chance one of them from the quorum as well."""
    part = stage.parts[member.name]
    stage.cut("a", "b")
    part.reach(cut=stage.rng.random() < 0.5)
    await trio.sleep(stage.rng.uniform(0.1, 2.5 * SESSION_S))
    part.reach(cut=False)
    stage.heal()


async def _short_pause(stage: ProvidedStage, member: ReplicaMember) -> None:
    """Let a node that serves stand still for so long that it keeps its role."""
    stage.paused = member if member.active else None
    member.machine.pause()
    await trio.sleep(SESSION_S * stage.rng.uniform(*SHORT))
    member.machine.resume()
    await trio.sleep(AFTER_S)
    if stage.paused is not None:
        stage.see("short_pause")
    stage.paused = None


async def _long_pause(stage: ProvidedStage, member: ReplicaMember) -> None:
    """Let a node stand still for a session, and a little longer."""
    member.machine.pause()
    await trio.sleep(SESSION_S * stage.rng.uniform(*LONG))
    member.machine.resume()


async def _replace(stage: ProvidedStage) -> None:
    """Kill a node in the middle of a change of its record, put a new machine in its place, and start the old one."""
    quorum, halfway = stage.quorum, trio.Event()
    member = await _active(stage)
    if member is None or not await _until(lambda: _followed(member)):
        return
    other, disk = stage.other(member), member.machine.disk
    quorum.half = halfway
    _end(other)
    with trio.move_on_after(STEP_S):
        await halfway.wait()
        stage.see("half_claimed")
    _end(member)
    quorum.half = None
    old, disk.tree = disk.tree, (new := Tree())
    try:
        for one in (other, member):
            one.start()
        if not await _until(lambda: _followed(other)):
            return
        await trio.sleep(1.0)
        for one in (other, member):
            _end(one)
        disk.tree = old
        stage.see("old_machine")
        stage.notes.note(f"an old machine of the name {member.name} is started")
        member.start()
        await trio.sleep(OLD_S)
    finally:
        # The one with the newer copy stays.
        _end(member)
        disk.tree = max((old, new), key=lambda tree: _counter(member, tree))


async def _active(stage: ProvidedStage) -> ReplicaMember | None:
    await _until(lambda: any(one.active for one in stage.members))
    return next((one for one in stage.members if one.active), None)


async def _until(reached: Callable[[], bool]) -> bool:
    for _ in range(round(STEP_S / LOOK_S)):
        if reached():
            return True
        await trio.sleep(LOOK_S)
    return False


def _followed(member: ReplicaMember) -> bool:
    """Whether a node serves, with a replica in sync."""
    broker = member.broker
    return member.active and broker is not None and bool(broker.ha.replicas) and not broker.ha.unprotected


def _end(member: ReplicaMember) -> None:
    member.machine.kill()
    member.down = True


def _counter(member: ReplicaMember, tree: Tree) -> int:
    """Return the counter of the copy on a disk of a node that is not running."""
    member.machine.disk.tree = tree
    return NodeDirectory(member.machine.disk, "/data").standing().activation


OWN_FAULTS: Final = {
    "both_down": _both_down,
    "cut_off": _cut_off,
    "partition": _partition,
    "short_pause": _short_pause,
    "long_pause": _long_pause,
}


def run_provided_pair_seed(seed: int) -> SimulationResult:
    """Run a seed; the result has the failure, if there was one."""
    return run_scenario(seed, provided_scenario, duration_s=DURATION_S, limit_s=LIMIT_S)
