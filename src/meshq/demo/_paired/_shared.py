"""Two nodes with one store, of which the one that serves is killed, comes back, and is stopped."""

from __future__ import annotations

import signal
from typing import Any, Final

import attrs
import trio

from meshq.cluster import ClusterConnection
from meshq.demo._paired._account import BACKUP, PRIMARY, Change, FlightAccount, differences_of_epochs
from meshq.demo._paired._flow import KILL_AT, Flow, serve
from meshq.demo._parent import Parent
from meshq.demo._process import Child
from meshq.demo._report_format import Role
from meshq.demo._settings import QUEUE
from meshq.ha import SharedStoreBackup, SharedStorePrimary
from meshq.node import Broker

LEASE_S: Final = 2.0
#: A node is stopped for so many leases.
LEASES_STOPPED: Final = 2


async def run_pair_member(parent: Parent, data_dir: str, name: str, port: str) -> None:
    """Be a node of the pair until the parent says nothing more."""
    shared: dict[str, Any] = {"lease": LEASE_S, "failover_on_shutdown": True, "wait_for_activation": False}
    ha = SharedStorePrimary(**shared) if name == PRIMARY else SharedStoreBackup(allow_failback=True, **shared)
    acceptors, pair = [f"tcp://127.0.0.1:{port}"], ClusterConnection("pair", user="demo", password="flights")
    broker = Broker(name, data_dir=data_dir, acceptors=acceptors, queues=[QUEUE], services=[pair], ha=ha)
    await serve(parent, broker)


@attrs.define(kw_only=True)
class PairTally(FlightAccount):
    """The account of a pair with one store."""

    changes: list[Change] = attrs.field(factory=list)

    @property
    def rows(self) -> list[str]:
        """The lines of the table about changes of role."""
        rows = [f"{'epoch':>5} {'serves':<8} {'because of':<12} {'without service':>16}"]
        return rows + [
            f"{one.epoch:>5} {one.node:<8} {one.reason:<12} {one.without_service:>14.2f} s" for one in self.changes
        ]

    def _further_differences(self) -> list[str]:
        """Sentences about missing and about unexpected changes of role, and about epochs without service."""
        found = [change.reason for change in self.changes]
        expected = ["started", "crash", "failback", "superseded" if "superseded" in found else "lease_lost"]
        if len(found) > len(expected) and self.changes[len(expected) - 1].node == BACKUP:
            # The node that was stopped gets the store back from the other one.
            expected.append("failback")
        missed = [reason for reason in dict.fromkeys(expected) if found.count(reason) < expected.count(reason)]
        said = [f"no node has taken over because of {reason}" for reason in missed]
        if not missed and found != expected:
            said.append(f"nodes have taken over because of {', '.join(found)}; expected: {', '.join(expected)}")
        return said + differences_of_epochs(self.changes)


class PairDemo(Flow[PairTally]):
    """The two nodes, and a producer and a consumer that go on."""

    def __init__(self, data_dir: str, lines: list[bytes], nursery: trio.Nursery) -> None:
        super().__init__(PairTally(lines=lines), nursery)
        self._data_dir = data_dir

    async def run(self) -> PairTally:
        """Carry the demo through.

        Checkpoint: always.  Cancellation: the processes are killed.
        Raises:
            DemoError: a process has ended, or something takes too long.
        """
        for name in (PRIMARY, BACKUP):
            self.start(name, "member", self._data_dir, name, "0")
            await self.until(f"{name} is there", lambda name=name: name in self._urls)  # type: ignore[misc]
        url = f"({','.join(self._urls.values())})"
        async with self.flowing(url, url):
            await self._steps()
        return self.account

    def changed(self, name: str, report: Role) -> None:
        """Note which node serves."""
        if report.role == "primary":
            change = Change(node=name, epoch=report.epoch, reason=report.reason, without_service=report.without_service)
            self.account.changes.append(change)

    async def _steps(self) -> None:
        account, rows = self.account, len(self.account.lines)
        await self.until("a fifth is sent", lambda: account.confirmed >= rows * KILL_AT)
        epoch, child = self._serving()
        self.kill(child)
        await self.until("the other node serves", lambda: self._serving()[0] > epoch)
        port = self._urls[child.name].rpartition(":")[2]
        self.start(child.name, "member", self._data_dir, child.name, port)
        await self.until("the first one serves again", lambda: self._serving()[0] > epoch + 1)
        await self.until("most is sent", lambda: account.confirmed >= self._limit)
        self._limit = rows
        epoch, child = self._serving()
        child.signal(signal.SIGSTOP)
        await trio.sleep(LEASES_STOPPED * LEASE_S)
        child.signal(signal.SIGCONT)
        await self.until("a node serves in a later epoch", lambda: self._serving()[0] > epoch)

    def _serving(self) -> tuple[int, Child]:
        last = self.account.changes[-1]
        return last.epoch, self._children[last.node]
