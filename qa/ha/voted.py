"""A simulated pair by replication in a cluster whose other nodes vote: links are cut, and voters come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import trio

from meshq import Broker, ClusterConnection, MajorityVote
from meshq.ha.replication import _joined
from meshq.ha.votes import Voter
from meshq.testing import SimNode, Simulation, SimulationResult
from qa.ha.replicated import (
    DURATION_S,
    LIMIT_S,
    ReplicaMember,
    ReplicatedStage,
    run_pair,
)
from qa.ha.replicated_faults import FAULTS, TTL_S, both_down, draw_faults
from qa.simulation.one_run import run_scenario
from qa.simulation.scenario import Outcome

#: Loaded before a simulation begins: no file is opened in it.
LOADED: Final = (_joined.joined, Voter)
#: The other nodes of the cluster.
VOTERS: Final = ("v0", "v1", "v2")
#: The pause between two votes, and the time of one.
WAIT_S: Final = 1.0
CUT_S: Final = 2.0
#: Within these seconds the nodes of the pair know who votes.
FORMED_S: Final = 4.0
#: The faults: those of a pair that matter here, and those of a cluster.
VOTED_FAULTS: Final[Mapping[str, int]] = {
    **{kind: FAULTS[kind] for kind in ("kill", "power", "stall", "fail_over", "disk", "hang")},
    "partition": 8,
    "isolation": 5,
    "cut_off": 5,
    "both_down": 3,
    "voter_down": 4,
}
#: What the fixed seeds have to have seen, each at least once.
VOTED_SIGHTS: Final = (
    *("takeover", "handed_over", "synced", "superseded", "large", "transaction", "stays"),
    *("may_take_over", "may_not_take_over", "may_stay", "may_not_stay", "vote_lost", "scaled_down"),
)


class VotingNode:
    """A node of the cluster that serves, and votes about the pair."""

    def __init__(self, stage: VotedStage, name: str) -> None:
        self.name = name
        self.machine: SimNode = stage.simulation.node(name)
        self._stage = stage

    def start(self) -> None:
        """Begin a life."""
        if self.machine.state == "dead":
            self.machine.start()
        self.machine.spawn(self._live)

    async def _live(self) -> None:
        url = self._stage.url_of(self.name)
        cluster: dict[str, Any] = {"connection_ttl": TTL_S, "retry_interval": 0.3, "password": "secret"}
        pair = [one.url for one in self._stage.members]
        broker = Broker(
            self.name,
            data_dir="/data",
            acceptors=[url],
            connectors={"own": url},
            services=[ClusterConnection("pair", connector="own", static_connectors=pair, **cluster)],
            env=self.machine.env,
        )
        await broker.run()


class VotedStage(ReplicatedStage):
    """A run with voters."""

    any_order = True
    sights = VOTED_SIGHTS
    faults = VOTED_FAULTS

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.stays = self.rng.random() < 0.5
        if self.stays:
            self.see("stays")
        self.voters = [VotingNode(self, name) for name in VOTERS]
        for voter in self.voters:
            voter.start()

    def about(self, member: ReplicaMember) -> Mapping[str, Any]:
        """Return settings of the policy of a node."""
        quorum = MajorityVote(vote_retries=5, vote_retry_wait=WAIT_S, quorum_vote_wait=CUT_S)
        return {**super().about(member), "quorum": quorum, "vote_on_replication_failure": self.stays}

    @property
    def url(self) -> str:
        """The URL of the clients, which go to no voter."""
        return f"{super().url}&use_topology=false"

    def happened(self, member: ReplicaMember, kind: str, event: Any) -> None:
        """Note a notification of a node."""
        super().happened(member, kind, event)
        if kind == "vote_held":
            told = f"{event.question}: {event.yes} of {event.asked}, {event.needed} needed: {event.granted}"
            self.notes.note(f"{member.name} holds a vote, {told}")
            may = "may" if event.granted else "may_not"
            if event.asked:
                self.see(f"{may}_{'take_over' if event.question == 'failed' else 'stay'}")
        elif kind == "role_changed" and event.role == "backup" and event.reason == "vote_lost":
            self.see("vote_lost")

    def split(self, one: str, others: Sequence[str]) -> None:
        """Let nothing through between a machine and others."""
        for other in others:
            self.cut(one, other)


async def voted_scenario(simulation: Simulation) -> Outcome:
    """Run a pair with voters under faults; the checkers follow."""
    stage = VotedStage(simulation)
    return await run_pair(stage, lambda _: _faults(stage))


async def _faults(stage: VotedStage) -> None:
    try:
        # Who votes is known before the first loss: until then it is a pair that decides alone.
        await trio.sleep(FORMED_S)
        await draw_faults(stage, (0.1, 1.0), OWN_FAULTS)
    finally:
        for voter in stage.voters:
            if voter.machine.state == "dead":
                voter.start()


async def _partition(stage: VotedStage, member: ReplicaMember) -> None:
    """Cut the nodes of the pair off from each other, and by chance one of them from some voters."""
    stage.cut("a", "b")
    stage.split(member.name, stage.rng.sample(VOTERS, stage.rng.randint(0, len(VOTERS))))
    await trio.sleep(stage.rng.uniform(0.1, 3 * TTL_S))
    stage.heal()


async def _isolation(stage: VotedStage, member: ReplicaMember) -> None:
    """Cut a node off from all others but the clients."""
    stage.split(member.name, [name for name in ("a", "b", *VOTERS) if name != member.name])
    await trio.sleep(stage.rng.uniform(TTL_S, 4 * TTL_S))
    stage.heal()


async def _cut_off(stage: VotedStage, member: ReplicaMember) -> None:
    """Cut a node off from some of the others, its partner among them by chance, and lose one of the two meanwhile."""
    rng = stage.rng
    stage.split(
        member.name, rng.sample([name for name in ("a", "b", *VOTERS) if name != member.name], rng.randint(1, 3))
    )
    await trio.sleep(rng.uniform(0.1, 2 * TTL_S))
    if rng.random() < 0.5:
        lost = rng.choice(stage.members)
        lost.machine.kill()
        lost.down = True
        await trio.sleep(rng.uniform(0.0, TTL_S))
        lost.start()
    stage.heal()


async def _both_down(stage: VotedStage, member: ReplicaMember) -> None:
    """Kill both, the one up to 4 s after the other, and start them in any order."""
    await both_down(stage, member, (TTL_S + 1, TTL_S))


async def _voter_down(stage: VotedStage, member: ReplicaMember) -> None:
    """Kill a voter, or take its power, for a while; by chance the node that serves is cut off from its partner, too."""
    rng, voter = stage.rng, stage.rng.choice(stage.voters)
    if rng.random() < 0.5:
        stage.cut("a", "b")
        await trio.sleep(rng.uniform(0.0, 2 * TTL_S))
    voter.machine.power_off() if rng.random() < 0.4 else voter.machine.kill()
    await trio.sleep(rng.uniform(0.1, TTL_S))
    voter.start()
    stage.heal()


OWN_FAULTS: Final = {
    "partition": _partition,
    "isolation": _isolation,
    "cut_off": _cut_off,
    "both_down": _both_down,
    "voter_down": _voter_down,
}


def run_voted_pair_seed(seed: int) -> SimulationResult:
    """Run a seed; the result has the failure, if there was one."""
    return run_scenario(seed, voted_scenario, duration_s=DURATION_S, limit_s=LIMIT_S)
