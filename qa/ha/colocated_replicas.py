"""The part of the simulated processes with backups of each other in which each node has a store of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import trio

from meshq import Broker, ClusterConnection, Colocated, MajorityVote, ReplicationBackup, ReplicationPrimary
from meshq.ha.replication import _joined
from meshq.ha.votes import Voter
from meshq.node.hosting import _remembering_host
from meshq.testing import SimNode
from qa.ha.clients import PairError

if TYPE_CHECKING:
    from qa.ha.colocated import ColocatedStage, Half

#: Loaded before a simulation begins: no file is opened in it.
LOADED: Final = (_joined.joined, Voter, _remembering_host.RememberingHost)
#: The third process, which votes, and runs a backup of the first node where the second one is lost.
THIRD: Final = "c"
#: Silence after which a link is given up, and the time of a slow replica.
TTL_S: Final = 3.0
SLOW_S: Final = 1.5
#: The longest time for which a file takes the place of another one where the disk is slow.
HANG_S: Final = 6.0
#: Within these seconds the nodes know who votes.
FORMED_S: Final = 4.0
RETRY: Final[dict[str, Any]] = {"retry_interval": 0.1, "max_retry_interval": 0.5}
CLUSTER: Final[dict[str, Any]] = {"connection_ttl": TTL_S, "call_timeout": SLOW_S}
#: Clients know of which node a backup is by its ports: who runs one of the first node runs none of the second one.
GROUPS: Final = {"a": "b", "b": "a", THIRD: "a"}


def replicating(name: str, *, failback: bool, asks: bool = True) -> Colocated:
    """Return the policy of a process by its name."""
    vote = MajorityVote(vote_retries=float("inf"), vote_retry_wait=1.0, quorum_vote_wait=2.0)
    about: dict[str, Any] = {"quorum": vote, **RETRY}
    return Colocated(
        primary=ReplicationPrimary(group_name=name, wait_for_activation=False, **about),
        backup=ReplicationBackup(group_name=GROUPS[name], allow_failback=failback, **about),
        request_backup=asks,
        backup_request_retry_interval=1.0,
    )


class ThirdProcess:
    """The third process, one life after the other."""

    def __init__(self, stage: ColocatedStage) -> None:
        self._stage = stage
        self.name = THIRD
        self.machine: SimNode = stage.simulation.node(THIRD)
        self.broker: Broker | None = None

    def start(self) -> None:
        """Begin a life."""
        if self.machine.state == "dead":
            self.machine.start()
        self.machine.spawn(self._live)

    async def _live(self) -> None:
        url = f"tcp://{THIRD}:7001?insecure=true"
        others = [half.own_url for half in self._stage.halves]
        cluster = ClusterConnection(
            "pair", password="secret", connector="own", static_connectors=others, load_balancing="off", **CLUSTER
        )
        self.broker = broker = Broker(
            THIRD,
            data_dir=f"/{THIRD}",
            acceptors=[url],
            connectors={"own": url},
            services=[cluster],
            ha=replicating(THIRD, failback=True, asks=False),
            stop_timeout=2,
            env=self.machine.env,
        )
        await broker.run()


async def replace_replica(stage: ColocatedStage) -> None:
    """Let the first node lose its replica, and the next one while its place is being written; the first one is back.

    At the end the node itself is lost, and has to find the replica that has taken over.
    """
    node, host = stage.halves
    third, rng, disk = stage.third, stage.rng, node.machine.disk
    if third is None or (broker := node.broker) is None or not is_protected(node, stage.brokers, home=True):
        return
    host.machine.kill()
    slow_s, before = rng.uniform(HANG_S / 2, HANG_S), disk.latency
    try:
        await _met(lambda: len(broker.ha.in_sync) == 1, HANG_S)
        # From here on a file takes the place of another one slowly.
        disk.latency = lambda call, size: slow_s if call == "replace" else 0.0
        await _met(lambda: _runs_backup(third), HANG_S)
        await trio.sleep(rng.uniform(0.0, 1.0))
        host.machine.start()
        host.start()
        third.machine.kill()
        await trio.sleep(rng.uniform(0.0, 1.0))
        third.start()
        await _met(lambda: len(broker.ha.in_sync) == 2, 2 * HANG_S)
    finally:
        disk.latency = before
    await trio.sleep(rng.uniform(0.0, 1.0))
    node.machine.kill()
    await trio.sleep(rng.uniform(TTL_S, 2 * TTL_S))
    node.machine.start()
    node.start()


async def _met(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition is met, so long at most."""
    until = trio.current_time() + seconds
    while not condition() and trio.current_time() < until:  # noqa: ASYNC110 - what is looked at tells nobody
        await trio.sleep(0.05)


def _runs_backup(third: ThirdProcess) -> bool:
    """Whether a backup in the third process gets its copy, or has it."""
    found = () if third.broker is None else third.broker.ha.hosted
    return any(one.phase in ("syncing", "in_sync") for one in found)


class Numbers:
    """The numbers of backups, as the disks of all processes have them."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], str] = {}

    def look(self, host: str, broker: Broker, machine: SimNode) -> None:
        """Look at the backups of a process, and at its directory.  Raises: PairError."""
        found = set(machine.disk.names(f"/{host}"))
        for name in sorted(found):
            if f"oldreplica.{name}" in found:
                raise PairError(f"CO8: the number of {name} at {host} was given twice")
        for one in broker.ha.hosted:
            known = self._given.setdefault((host, one.name), one.requester)
            if known != one.requester:
                raise PairError(f"CO8: {one.name} at {host} is the backup of {known}, and of {one.requester}")


def running(brokers: Iterable[Broker | None]) -> list[Broker]:
    """Return these brokers, and the backups that run in them."""
    found: list[Broker] = []
    for broker in brokers:
        if broker is not None:
            found.append(broker)
            hosting = broker._run.hosting
            found += [] if hosting is None else [one.broker for one in hosting._hosted.values()]  # type: ignore[misc]
    return found


def is_protected(half: Half, brokers: Iterable[Broker | None], *, home: bool) -> bool:
    """Whether the store of a node is served, by the node itself where it is to be ``home``, with a replica in sync."""
    node_id = half.learn_id()
    serving = [one for one in running(brokers) if one.state == "active" and one.node_id == node_id]
    return len(serving) == 1 and (not home or serving[0] is half.broker) and len(serving[0].ha.in_sync) == 2


async def until_protected(stage: ColocatedStage, seconds: float) -> None:
    """Wait until each store has a replica in sync, and its node the role, if backups give it back."""
    with trio.move_on_after(seconds):
        while not all(is_protected(half, stage.brokers, home=stage.failback) for half in stage.halves):
            stage.restart()
            await trio.sleep(0.1)
        return
    what = [f"{one.name} {one.state} {one.ha!r} {one.ha.last_error}" for one in running(stage.brokers)]
    raise PairError(f"H6: not every store has two nodes {seconds:g} s after the last fault: {what}")
