"""Two pairs by replication in a cluster: a primary is killed and comes back, another one is stopped and superseded.

The nodes of a cluster vote on who serves, or three witnesses of a quorum say so.
"""

from __future__ import annotations

import signal
from typing import Any, Final

import attrs
import trio

from meshq.cluster import ClusterConnection
from meshq.demo._member import free_ports
from meshq.demo._paired._account import BACKUP, PRIMARY, Change, FlightAccount, differences_of_epochs
from meshq.demo._paired._flow import KILL_AT, Flow, serve
from meshq.demo._parent import Parent
from meshq.demo._report_format import Ready, Role
from meshq.demo._settings import QUEUE
from meshq.ha import MajorityVote, MeshQuorum, QuorumNode, ReplicationBackup, ReplicationPrimary
from meshq.node import Broker
from meshq.settings import AddressSettings

#: Flights come in at one pair, and are consumed at the other one.
SOURCE: Final = "east"
SINK: Final = "west"
PAIRS: Final = (SOURCE, SINK)
#: Seconds of silence after which a link is given up, and so a primary.
TTL_S: Final = 2.0
LINK: Final[dict[str, Any]] = {"connection_ttl": TTL_S, "check_period": TTL_S / 4}
#: The witnesses of a quorum, and how long the lock of a node lasts that they hear nothing of.
WITNESSES: Final = ("witness-1", "witness-2", "witness-3")
PASSWORD: Final = "flights"
SESSION_S: Final = 9.0
#: While a node copies, so small a share of the flights is sent every so many seconds.
TRICKLE: Final = 100
TRICKLE_S: Final = 0.1
#: Why nodes of a pair serve, and then the other one, and then the first one again.
REASONS: Final = ("started", "crash", "failback")
#: Why the node that was stopped steps back: the other one has told it, or its lock has run out.
SUPERSEDED: Final = "superseded"
LEASE_LOST: Final = "lease_lost"


def member_name(pair: str, role: str) -> str:
    """Return the name of a node."""
    return f"{pair}-{role}"


#: All nodes: east-first, east-second, west-first, west-second.
MEMBERS: Final = tuple(member_name(pair, role) for pair in PAIRS for role in (PRIMARY, BACKUP))


async def run_witness(parent: Parent, data_dir: str, name: str) -> None:
    """Be a witness until the parent says nothing more."""
    acceptors = ["tcp://127.0.0.1:0"]
    async with QuorumNode(name, data_dir=data_dir, acceptors=acceptors, password=PASSWORD) as node:
        await parent.say(Ready(url=node.urls[0]))
        while await parent.hear() is not None:
            pass


async def run_replica_member(parent: Parent, data_dir: str, name: str, witnesses: str, *ports: str) -> None:
    """Be a node of one of the pairs until the parent says nothing more; ``witnesses``: their URLs, with commas."""
    at = MEMBERS.index(name)
    pair, role = name.split("-")
    urls = [f"tcp://127.0.0.1:{port}" for port in ports]
    # The other node of the pair is asked first, and those of the other pair behind it.
    others = [urls[at ^ 1], *(url for index, url in enumerate(urls) if index // 2 != at // 2)]
    quorum = MeshQuorum(witnesses.split(","), password=PASSWORD, session=SESSION_S) if witnesses else MajorityVote()
    shared: dict[str, Any] = {"group_name": pair, "quorum": quorum, "retry_interval": 0.1, "max_retry_interval": 0.5}
    ha = (
        ReplicationPrimary(check_for_live_server=not witnesses, wait_for_activation=False, **shared)
        if role == PRIMARY
        else ReplicationBackup(allow_failback=True, **shared)
    )
    cluster = ClusterConnection("pairs", user="demo", password=PASSWORD, static_connectors=others, **LINK)
    broker = Broker(
        name,
        data_dir=data_dir,
        acceptors=[urls[at]],
        queues=[QUEUE],
        services=[cluster],
        ha=ha,
        # What came while no consumer was known follows it.
        address_settings={QUEUE: AddressSettings(redistribution_delay=0)},
    )
    await serve(parent, broker)


@attrs.define(kw_only=True)
class ReplicaTally(FlightAccount):
    """The account of two pairs by replication."""

    #: Why the node that was stopped has to step back when it goes on.
    steps_back: str = SUPERSEDED
    #: By pair: which node served, in turn.
    changes: dict[str, list[Change]] = attrs.field(factory=lambda: {pair: [] for pair in PAIRS})
    #: Why nodes have stepped back: name and reason.
    stepped_back: list[tuple[str, str]] = attrs.field(factory=list)
    #: Flights that were confirmed while the node that was killed copied what it had missed.
    meanwhile: int = 0

    @property
    def rows(self) -> list[str]:
        """The lines of the table about changes of role."""
        rows = [f"{'pair':<6} {'epoch':>5} {'serves':<12} {'because of':<12} {'without service':>16}"]
        for pair in PAIRS:
            rows += [
                f"{pair:<6} {one.epoch:>5} {one.node:<12} {one.reason:<12} {one.without_service:>14.2f} s"
                for one in self.changes[pair]
            ]
        rows += [
            f"{name} has stepped back: {reason}" for name, reason in self.stepped_back if reason == self.steps_back
        ]
        return [*rows, f"{self.meanwhile:,} flights were confirmed while a node copied what it had missed"]

    def _further_differences(self) -> list[str]:
        said: list[str] = []
        for pair in PAIRS:
            found = [(one.node, one.reason) for one in self.changes[pair]]
            first, second = member_name(pair, PRIMARY), member_name(pair, BACKUP)
            expected = list(zip((first, second, first), REASONS, strict=True))
            missed = [one for one in expected if one not in found]
            said += [f"{name} has not taken over because of {reason}" for name, reason in missed]
            if not missed and found != expected:
                what = ", ".join(f"{name} ({reason})" for name, reason in found)
                said.append(f"nodes of {pair} served in another order: {what}")
            said += differences_of_epochs(self.changes[pair], f"at {pair} ")
        if (member_name(SINK, PRIMARY), self.steps_back) not in self.stepped_back:
            said.append("the node that was stopped has not stepped back when it went on")
        if not self.meanwhile:
            said.append("no flight was confirmed while a node copied what it had missed")
        return said


class ReplicaDemo(Flow[ReplicaTally]):
    """The four nodes, a producer at one pair, and a consumer at the other one; and the witnesses, if there are some."""

    def __init__(
        self, data_dir: str, lines: list[bytes], nursery: trio.Nursery, *, witnesses: tuple[str, ...] = ()
    ) -> None:
        account = ReplicaTally(lines=lines, steps_back=LEASE_LOST if witnesses else SUPERSEDED)
        # A client that finds no node of its pair waits for one: ids of flights are known to that pair alone.
        super().__init__(account, nursery, use_topology=False, **LINK)
        self._data_dir = data_dir
        self._witnesses = witnesses
        self._ports: list[str] = []

    async def run(self) -> ReplicaTally:
        """Carry the demo through.

        Checkpoint: always.  Cancellation: the processes are killed.
        Raises:
            DemoError: a process has ended, or something takes too long.
        """
        for name in self._witnesses:
            self.start(name, "witness", f"{self._data_dir}/{name}", name)
        await self.until("the witnesses are there", lambda: len(self._urls) == len(self._witnesses))
        self._ports = [str(port) for port in await free_ports(len(MEMBERS))]
        for name in MEMBERS:
            self._start_member(name)
        for pair in PAIRS:
            await self._until_in_sync(pair)
        source, sink = (f"(tcp://127.0.0.1:{a},tcp://127.0.0.1:{b})" for a, b in (self._ports[:2], self._ports[2:]))
        async with self.flowing(source, sink):
            await self._kill()
            await self._stop()
        return self.account

    def _start_member(self, name: str) -> None:
        witnesses = ",".join(self._urls[witness] for witness in self._witnesses)
        self.start(name, "replica", f"{self._data_dir}/{name}", name, witnesses, *self._ports)

    def changed(self, name: str, report: Role) -> None:
        """Note which node serves, or has stepped back."""
        if report.role != "primary":
            self.account.stepped_back.append((name, report.reason))
            return
        change = Change(node=name, epoch=report.epoch, reason=report.reason, without_service=report.without_service)
        self.account.changes[name.split("-")[0]].append(change)
        self._moved += 1

    async def _until_in_sync(self, pair: str) -> None:
        """Wait until both nodes of a pair have all that was confirmed: before that the backup can't take over."""
        served = self.account.changes[pair]
        await self.until(
            f"both nodes of {pair} are in sync", lambda: bool(served) and self._in_sync.get(served[-1].node) == 2
        )

    def _terms(self, pair: str) -> int:
        return len(self.account.changes[pair])

    async def _kill(self) -> None:
        account, rows = self.account, len(self.account.lines)
        await self.until("a fifth is sent", lambda: account.confirmed >= rows * KILL_AT)
        name = account.changes[SOURCE][-1].node
        self.kill(self._children[name])
        batch, pause_s = self._batch, self._pause_s
        self._batch, self._pause_s = max(1, rows // TRICKLE // 4), TRICKLE_S
        await self.until("the backup serves", lambda: self._terms(SOURCE) == 2)
        before = account.confirmed
        self._start_member(name)
        await self.until(f"{name} serves again", lambda: self._terms(SOURCE) == 3)
        account.meanwhile = account.confirmed - before
        self._batch, self._pause_s = batch, pause_s

    async def _stop(self) -> None:
        account, rows = self.account, len(self.account.lines)
        await self.until("most is sent", lambda: account.confirmed >= self._limit)
        await self._until_in_sync(SINK)
        child = self._children[account.changes[SINK][-1].node]
        self._limit = rows
        child.signal(signal.SIGSTOP)
        try:
            await self.until("the backup serves", lambda: self._terms(SINK) == 2)
        finally:
            child.signal(signal.SIGCONT)
        await self.until(f"{child.name} serves again", lambda: self._terms(SINK) == 3)
