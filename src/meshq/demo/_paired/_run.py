"""The demo of a pair: two nodes with one store, of which the one that serves is killed, comes back, and is stopped."""

from __future__ import annotations

import argparse
import signal
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import trio

from meshq.client import connect
from meshq.cluster import ClusterConnection
from meshq.demo._flights import find_file, read_lines
from meshq.demo._flights_format import parse
from meshq.demo._parent import Parent
from meshq.demo._process import Child, DemoError, ungrouped
from meshq.demo._report_format import Ready, Report, Role
from meshq.demo._settings import QUEUE
from meshq.errors import MeshqError, SettingsError
from meshq.ha import SharedStoreBackup, SharedStorePrimary
from meshq.message import Message
from meshq.node import Broker
from meshq.notifications import RoleChanged

#: The ways to have a backup that the demo shows.
WAYS: Final = ("shared-store",)
PRIMARY: Final = "first"
BACKUP: Final = "second"
LEASE_S: Final = 2.0
#: A node is stopped for so many leases.
LEASES_STOPPED: Final = 2
#: The shares of the flights after which the node that serves is killed, and stopped.
KILL_AT: Final = 0.2
STOP_AT: Final = 0.6
ROWS_MIN: Final = 2_000
BATCH: Final = 500
#: Seconds in which a process starts, a role changes, or anything progresses.
PATIENCE_S: Final = 60.0
CLIENT: Final[dict[str, Any]] = {
    "reconnect_attempts": float("inf"),
    "initial_connect_attempts": 1_000,
    "retry_interval": 0.05,
    "max_retry_interval": 0.25,
}


async def run_pair_member(parent: Parent, data_dir: str, name: str, port: str) -> None:
    """Be a node of the pair until the parent says nothing more."""
    shared: dict[str, Any] = {"lease": LEASE_S, "failover_on_shutdown": True, "wait_for_activation": False}
    ha = SharedStorePrimary(**shared) if name == PRIMARY else SharedStoreBackup(allow_failback=True, **shared)
    acceptors, pair = [f"tcp://127.0.0.1:{port}"], ClusterConnection("pair", user="demo", password="flights")
    broker = Broker(name, data_dir=data_dir, acceptors=acceptors, queues=[QUEUE], services=[pair], ha=ha)
    events = broker.events()

    async def tell() -> None:
        async for event in events:
            if isinstance(event, RoleChanged):
                await parent.say(Role(event.role, event.epoch, event.reason, event.without_service))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell)
        async with broker:
            await parent.say(Ready(url=broker.urls[0]))
            while await parent.hear() is not None:
                pass
        nursery.cancel_scope.cancel()


@attrs.frozen(kw_only=True)
class Change:
    """A change of role: the new node, the reason, and the time without service."""

    node: str
    epoch: int
    reason: str
    without_service: float


@attrs.define(kw_only=True)
class PairTally:
    """The account of a run: confirmed sends, received flights, and confirmed acknowledgements."""

    lines: list[bytes]
    confirmed: int = 0
    #: By the key of a flight its line, once it has come; and the keys of those whose acknowledgement was confirmed.
    arrived: dict[bytes, bytes] = attrs.field(factory=dict)
    settled: set[bytes] = attrs.field(factory=set)
    #: Flights that came again after that.
    again: int = 0
    changes: list[Change] = attrs.field(factory=list)

    def came(self, line: bytes) -> bytes:
        """Note a flight that has come; return its key."""
        key = parse(line).key
        self.again += key in self.settled
        self.arrived[key] = line
        return key

    @property
    def differences(self) -> list[str]:
        """Sentences about all that differs from the file; none if nothing does."""
        expected = {parse(line).key: line for line in self.lines}
        lost = [key for key in expected if key not in self.arrived]
        strange = [key for key, line in self.arrived.items() if expected.get(key) != line]
        found = [(self.again, "came twice"), (len(lost), "were lost"), (len(strange), "are not those of the file")]
        said = [f"{number:,} flights {what}" for number, what in found if number]
        return said + self._differences_of_changes()

    def _differences_of_changes(self) -> list[str]:
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
        epochs = [change.epoch for change in self.changes]
        if epochs != list(range(1, len(epochs) + 1)):
            said.append(f"the epochs of nodes that served are {', '.join(map(str, epochs))}")
        return said


class PairDemo:
    """The two nodes, and a producer and a consumer that go on."""

    def __init__(self, data_dir: str, lines: list[bytes], nursery: trio.Nursery) -> None:
        self._data_dir = data_dir
        self._nursery = nursery
        self._children: dict[str, Child] = {}
        self._urls: dict[str, str] = {}
        # Rows that the producer may send by now: the next step comes under load, and not after everything.
        self._limit = int(len(lines) * STOP_AT)
        self._moved = 0
        self.tally: PairTally = PairTally(lines=lines)

    async def run(self) -> PairTally:
        """Carry the demo through.

        Checkpoint: always.  Cancellation: the processes are killed.
        Raises:
            DemoError: a process has ended, or something takes too long.
        """
        for name in (PRIMARY, BACKUP):
            self._start(name, "0")
            await self._until(f"{name} is there", lambda name=name: name in self._urls)  # type: ignore[misc]
        url = f"({','.join(self._urls.values())})"
        tally, done = self.tally, trio.Event()
        async with trio.open_nursery() as nursery:

            async def consume() -> None:
                await self._consume(url)
                done.set()

            nursery.start_soon(self._produce, url)
            nursery.start_soon(consume)
            await self._steps()
            await self._until("all flights have come", lambda: tally.confirmed == len(tally.lines) and done.is_set())
        return tally

    def _start(self, name: str, port: str) -> None:
        child = Child(name, "member", self._data_dir, name, port)
        self._children[name] = child
        self._nursery.start_soon(child.attend, self._heard)

    def _heard(self, child: Child, report: Report) -> None:
        if isinstance(report, Ready):
            self._urls[child.name] = report.url
        elif isinstance(report, Role) and report.role == "primary":
            change = Change(
                node=child.name, epoch=report.epoch, reason=report.reason, without_service=report.without_service
            )
            self.tally.changes.append(change)

    async def _steps(self) -> None:
        tally, rows = self.tally, len(self.tally.lines)
        await self._until("a fifth is sent", lambda: tally.confirmed >= rows * KILL_AT)
        epoch, child = self._serving()
        child.kill()
        await self._until("the other node serves", lambda: self._serving()[0] > epoch)
        self._start(child.name, self._urls[child.name].rpartition(":")[2])
        await self._until("the first one serves again", lambda: self._serving()[0] > epoch + 1)
        await self._until("most is sent", lambda: tally.confirmed >= self._limit)
        self._limit = rows
        epoch, child = self._serving()
        child.signal(signal.SIGSTOP)
        await trio.sleep(LEASES_STOPPED * LEASE_S)
        child.signal(signal.SIGCONT)
        await self._until("a node serves in a later epoch", lambda: self._serving()[0] > epoch)

    def _serving(self) -> tuple[int, Child]:
        last = self.tally.changes[-1]
        return last.epoch, self._children[last.node]

    async def _until(self, what: str, is_so: Callable[[], bool]) -> None:
        moved, deadline = -1, 0.0
        while not is_so():
            if moved != self._moved:
                moved, deadline = self._moved, trio.current_time() + PATIENCE_S
            if trio.current_time() > deadline:
                raise DemoError(f"nothing has moved for {PATIENCE_S:g} s until {what}")
            await trio.sleep(0.02)

    async def _produce(self, url: str) -> None:
        lines, tally = self.tally.lines, self.tally
        async with connect(url, **CLIENT) as client:
            while tally.confirmed < len(lines):
                rows = lines[tally.confirmed : min(tally.confirmed + BATCH, self._limit)]
                if not rows:
                    await trio.sleep(0.02)
                    continue
                try:
                    await client.send_many(QUEUE, [Message(row, duplicate_id=parse(row).key) for row in rows])
                except MeshqError:
                    # Whether they are there nobody knows: they are sent again, and their ids say what is there.
                    await trio.sleep(0.02)
                    continue
                tally.confirmed += len(rows)
                self._moved += 1

    async def _consume(self, url: str) -> None:
        tally = self.tally
        async with connect(url, **CLIENT) as client:
            while len(tally.arrived) < len(tally.lines):
                try:
                    async with client.consumer(QUEUE, window=4 * BATCH) as consumer:
                        while len(tally.arrived) < len(tally.lines):
                            batch = await consumer.receive_many(BATCH, timeout=0.5)
                            keys = [tally.came(bytes(one.body)) for one in batch]
                            if batch:
                                self._moved += 1
                                await consumer.ack(*batch, confirm=True)
                                tally.settled.update(keys)
                except MeshqError:
                    # What was not confirmed comes again, or was carried out all the same.
                    await trio.sleep(0.02)
            # What comes now was not acknowledged before.
            async with client.consumer(QUEUE) as consumer:
                for one in await consumer.receive_many(BATCH, timeout=1):
                    tally.came(bytes(one.body))


def pair_table(tally: PairTally) -> str:
    """Return the changes of role, and the account, as a table."""
    rows = [f"{'epoch':>5} {'serves':<8} {'because of':<12} {'without service':>16}"]
    rows += [f"{one.epoch:>5} {one.node:<8} {one.reason:<12} {one.without_service:>14.2f} s" for one in tally.changes]
    good = f"{len(tally.arrived):,} of {len(tally.lines):,} flights: 0 lost, 0 came twice, each as in the file."
    return "\n".join([*rows, *(tally.differences or [good])])


async def run_paired(rows: int | None) -> PairTally:
    """Run the demo; no process and no file is left.

    Checkpoint: always.  Cancellation: the processes are killed.
    Raises: DemoError: it could not be carried through.
    """
    lines = read_lines(find_file(), rows)
    with ungrouped(), tempfile.TemporaryDirectory(prefix="meshq-demo-") as data_dir:
        async with trio.open_nursery() as nursery:
            tally = await PairDemo(data_dir, lines, nursery).run()
            nursery.cancel_scope.cancel()
    return tally


def parse_paired(arguments: Sequence[str]) -> int | None:
    """Return how many flights a command line asks for; None: all.

    Raises:
        SettingsError: that is not allowed.
    """
    parser = argparse.ArgumentParser(prog="python -m meshq demo", allow_abbrev=False, description=__doc__)
    parser.add_argument("--ha", choices=WAYS, required=True, help="how the backup gets what is stored")
    parser.add_argument("--rows", type=int, metavar="N", help=f"the first N flights only, {ROWS_MIN:,} at least")
    rows: int | None = parser.parse_args(arguments).rows
    if rows is not None and rows < ROWS_MIN:
        raise SettingsError("rows", rows, f"a whole number from {ROWS_MIN:,}: the kill and the stop come under load")
    return rows
