"""The demo of a network: flights enter at spokes and are wanted at others, consumers move, and a hub is killed."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import gt
from typing import Any, Final

import trio

from meshq.client import Client, connect
from meshq.demo._flights import find_file, read_lines
from meshq.demo._flights_format import parse
from meshq.demo._networked._account import NetworkAccount
from meshq.demo._networked._brokers import HUB_EAST, HUB_WEST, SPOKES, queue_of
from meshq.demo._networked._slow_link import SlowLink
from meshq.demo._process import Child, ungrouped
from meshq.demo._processes import Patience, StalledError
from meshq.demo._report_format import Ready, Report
from meshq.env import real_env
from meshq.errors import SettingsError
from meshq.message import Message

#: The link between the hubs.
DELAY_S: Final = 0.05
BITS_PER_S: Final = 5_000_000
#: Where flights come in, in turn.
ENTRIES: Final = ("east-2", "west-3")
#: By origin where its departures are wanted: at first, and after the move.
PLACES: Final = {"EWR": ("west-1", "east-1"), "LGA": ("east-1", "west-1"), "JFK": ("west-2", "west-2")}
#: The shares of the flights after which consumers move, and the hub is killed.
MOVE_AT: Final = 0.3
KILL_AT: Final = 0.6
ROWS_MIN: Final = 2_000
BATCH: Final = 250
#: Of few flights so many batches are made at each entry, with a pause between them.
BATCHES_MIN: Final = 40
PAUSE_S: Final = 0.02


class NetworkDemo:
    """The brokers, the link between the hubs, two producers, and a consumer for each origin."""

    def __init__(self, data_dir: str, lines: list[bytes], nursery: trio.Nursery) -> None:
        self._data_dir = data_dir
        self._nursery = nursery
        self._children: dict[str, Child] = {}
        self._urls: dict[str, str] = {}
        self._clients: dict[str, Client] = {}
        # Where the URL leads that a broker dials; empty: it dials nobody.
        self._dials: dict[str, str] = {HUB_WEST: ""}
        # The share of the flights that may be sent by now.
        self._share = MOVE_AT
        # By origin the scope of its consumer.
        self._consuming: dict[str, trio.CancelScope] = {}
        self.account: NetworkAccount = NetworkAccount(lines=lines)

    async def run(self) -> NetworkAccount:
        """Carry the demo through.

        Checkpoint: always.  Cancellation: the processes are killed.
        Raises:
            DemoError: a process has ended, or something takes too long.
        """
        await self._start(HUB_WEST)
        link = SlowLink(real_env().network, self._port(HUB_WEST), delay_s=DELAY_S, bits_per_s=BITS_PER_S)
        self._dials[HUB_EAST] = f"tcp://127.0.0.1:{await self._nursery.start(link.run)}"
        await self._start(HUB_EAST)
        for spoke, hub in SPOKES.items():
            self._dials[spoke] = self._urls[hub]
            await self._start(spoke)
        for spoke in SPOKES:
            self._clients[spoke] = await self._nursery.start(self._connected, spoke)
        async with trio.open_nursery() as nursery:
            for origin, (place, _) in PLACES.items():
                nursery.start_soon(self._consume, origin, place)
            for at, entry in enumerate(ENTRIES):
                nursery.start_soon(self._produce, entry, self.account.lines[at :: len(ENTRIES)])
            await self._move(nursery)
            await self._kill()
            await self._come_back(nursery)
            nursery.cancel_scope.cancel()
        return self.account

    def _port(self, name: str) -> int:
        return int(self._urls[name].rpartition(":")[2])

    async def _start(self, name: str, port: int = 0) -> None:
        """Start a broker, and wait until it is there."""
        self._urls.pop(name, None)
        child = Child(name, "network", f"{self._data_dir}/{name}", name, str(port), self._dials[name])
        self._children[name] = child
        self._nursery.start_soon(child.attend, self._heard)
        await self._until(f"{name} is there", lambda: name in self._urls)

    def _heard(self, child: Child, report: Report) -> None:
        if isinstance(report, Ready):
            self._urls[child.name] = report.url

    async def _until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait until something is so.  Raises: DemoError: nothing has moved for too long."""
        patience = Patience(lambda: (self.account.confirmed, len(self.account.arrived), self.account.again))
        while not is_so():
            patience.check(what)
            await trio.sleep(0.02)

    # -- what goes in and comes out

    async def _connected(self, spoke: str, task_status: trio.TaskStatus[Client]) -> None:
        async with connect(self._urls[spoke]) as client:
            task_status.started(client)
            await trio.sleep_forever()

    async def _produce(self, entry: str, lines: list[bytes]) -> None:
        client, sent = self._clients[entry], 0
        batch = max(1, min(BATCH, len(lines) // BATCHES_MIN))
        while sent < len(lines):
            rows = lines[sent : min(sent + batch, max(1, int(len(lines) * self._share)))]
            for origin in PLACES:
                own = [Message(row, duplicate_id=flight.key) for row in rows if (flight := parse(row)).origin == origin]
                if own:
                    await client.send_many(queue_of(origin), own)
            sent += len(rows)
            self.account.confirmed += len(rows)
            await trio.sleep(PAUSE_S)

    async def _consume(self, origin: str, place: str, *, back: bool = False) -> None:
        """Take the departures of an origin at a spoke, until the scope of the origin is cancelled."""
        account = self.account
        with trio.CancelScope() as scope:
            if not back:
                self._consuming[origin] = scope
            async with self._clients[place].consumer(queue_of(origin), window=2 * BATCH) as consumer:
                while True:
                    batch = await consumer.receive_many(BATCH, timeout=60)
                    with trio.CancelScope(shield=True):
                        if batch:
                            await consumer.ack(*batch, confirm=True)
                    for one in batch:
                        account.came(bytes(one.body))
                        account.ways[(*one.path, place)] += 1
                    account.waited += len(batch) * back

    # -- the steps

    async def _move(self, nursery: trio.Nursery) -> None:
        """Move consumers across the slow link, while flights are on their way."""
        rows = len(self.account.lines)
        await self._until("flights come", lambda: len(self.account.arrived) >= rows * MOVE_AT / 3)
        for origin, (old, new) in PLACES.items():
            if old == new:
                continue
            self._consuming[origin].cancel()
            nursery.start_soon(self._consume, origin, new)
            self.account.moves.append((origin, old, new))
        self._share = KILL_AT

    async def _kill(self) -> None:
        """Kill a hub under load, and start it again."""
        account, rows = self.account, len(self.account.lines)
        await self._until("more than half is sent", lambda: account.confirmed >= rows * (MOVE_AT + KILL_AT) / 2)
        port, began = self._port(HUB_WEST), trio.current_time()
        self._children[HUB_WEST].kill()
        await self._children[HUB_WEST].ended.wait()
        before = account.confirmed
        await self._until("flights are sent without it", lambda: account.confirmed > before)
        await self._start(HUB_WEST, port)
        account.sent_meanwhile = account.confirmed - before
        crossed = self._crossed
        self._share = 1.0
        # What a dead hub may have had is settled by the link itself, before a consumer is opened elsewhere.
        await self._until("flights cross the slow link again", lambda: all(map(gt, self._crossed, crossed)))
        account.away_s = trio.current_time() - began

    @property
    def _crossed(self) -> tuple[int, int]:
        """The flights that have crossed the slow link, each way."""
        found = [0, 0]
        for way, number in self.account.ways.items():
            if HUB_EAST in way and HUB_WEST in way:
                found[way.index(HUB_EAST) < way.index(HUB_WEST)] += number
        return found[0], found[1]

    async def _come_back(self, nursery: trio.Nursery) -> None:
        """Open consumers at their first spokes again, for the flights that wait there."""
        account = self.account
        await self._until("all is sent", lambda: account.confirmed == len(account.lines))
        for origin, (old, new) in PLACES.items():
            if old != new:
                nursery.start_soon(lambda origin=origin, old=old: self._consume(origin, old, back=True))  # type: ignore[misc]
        # Of one that is lost the account says so.
        with suppress(StalledError):
            await self._until("all flights have come", lambda: len(account.arrived) == len(account.lines))
        # What comes now comes twice.
        await trio.sleep(1.0)


async def run_networked(rows: int | None) -> NetworkAccount:
    """Run the demo; no process and no file is left.

    Checkpoint: always.  Cancellation: the processes are killed.
    Raises: DemoError: it could not be carried through.
    """
    lines = read_lines(find_file(), rows)
    with ungrouped(), tempfile.TemporaryDirectory(prefix="meshq-demo-") as data_dir:
        async with trio.open_nursery() as nursery:
            account = await NetworkDemo(data_dir, lines, nursery).run()
            nursery.cancel_scope.cancel()
    return account


def parse_network(arguments: Sequence[str]) -> int | None:
    """Return how many flights a command line asks for; None: all.

    Raises:
        SettingsError: that is not allowed.
    """
    options: dict[str, Any] = {"prog": "python -m meshq demo", "allow_abbrev": False, "description": __doc__}
    parser = argparse.ArgumentParser(**options)
    parser.add_argument("--network", action="store_true", required=True, help="show a network of brokers")
    parser.add_argument("--rows", type=int, metavar="N", help=f"the first N flights only, {ROWS_MIN:,} at least")
    rows: int | None = parser.parse_args(arguments).rows
    if rows is not None and rows < ROWS_MIN:
        raise SettingsError(
            "rows", rows, f"a whole number from {ROWS_MIN:,}: consumers move, and a hub dies, under load"
        )
    return rows
