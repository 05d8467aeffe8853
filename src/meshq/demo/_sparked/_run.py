"""The director: nodes, query, producer and consumer, and the kills."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from meshq.client import Client, connect
from meshq.demo._flights import find_file, read_lines
from meshq.demo._member import free_ports
from meshq.demo._process import Child, DemoError, ungrouped
from meshq.demo._report_format import End, Progress, Ready, Report
from meshq.demo._settings import CLIENT, QUEUE, node_name
from meshq.demo._sparked._hours_format import Account, account_of, hour_of, parse_hour
from meshq.demo._sparked._options import SparkOptions
from meshq.demo._sparked._plan import NODES, WINDFULS, Strikes, plan_strikes, seconds_of, span_of, waiting_max
from meshq.demo._sparked._query_process import TABLE
from meshq.demo._sparked._settings import ALERTS, DELAYS
from meshq.errors import MeshqError
from meshq.message import Message

#: Flights of one send; each goes to the next node.
BATCH: Final = 250
#: Alerts that are received at once.
ALERTS_BATCH: Final = 100
HOUR_S: Final = 3_600
#: Seconds in which anything moves; after the last flight, in which a window comes; and between two looks.
PATIENCE_S: Final = 180.0
QUIET_S: Final = 15.0
LOOK_S: Final = 0.02
#: A flight of nobody, far in the future: with it all windows are over.
LAST: Final = b",,,,,NA,,,,-,,,,,,,,,%b"


class SparkDemo:
    """A run: three nodes, a producer at each, a query over all, and a service that hears of alerts."""

    def __init__(self, folder: str, lines: list[bytes], strikes: Strikes, nursery: trio.Nursery) -> None:
        self._folder = folder
        self._lines = lines
        self._strikes = strikes
        self._nursery = nursery
        self._nodes: dict[int, Child] = {}
        self._ports: list[int] = []
        self._urls: dict[Child, str] = {}
        self._clients: list[Client] = []
        # The query's process, its last report, and the batches of those that were killed.
        self._query: Child | None = None
        self._progress = Progress(0, -1)
        self._confirmed = self._moved = 0
        self._began = time.monotonic()
        self.account: Account = account_of(lines)
        # So many flights may wait for the query, and so many seconds may one of them be behind another one.
        self._most = waiting_max(len(lines))
        self._hours = [*map(hour_of, lines)]
        self._watermark_s = span_of(self._hours, self._most * WINDFULS) + HOUR_S

    # -- processes

    def _start(self, name: str, role: str, *arguments: str) -> Child:
        child = Child(name, role, *arguments)
        self._nursery.start_soon(child.attend, self._heard)
        return child

    def _start_node(self, number: int) -> None:
        ports = map(str, self._ports)
        data_dir = str(Path(self._folder, node_name(number)))
        self._nodes[number] = self._start(node_name(number), "mesh_node", data_dir, str(number), *ports)

    def _start_query(self) -> None:
        folder = Path(self._folder, "query")
        folder.mkdir(exist_ok=True)
        self._query = self._start("query", "query", str(folder), self._url, str(self._watermark_s), str(self._most))

    def _heard(self, child: Child, report: Report) -> None:
        self._moved += 1
        if isinstance(report, Ready):
            self._urls[child] = report.url
        elif isinstance(report, Progress) and child is self._query:
            self._progress = report

    async def _until(self, what: str, is_so: Callable[[], bool]) -> None:
        moved, deadline = -1, 0.0
        while not is_so():
            for child in (*self._nodes.values(), *([self._query] if self._query else [])):
                if child.ended.is_set() and child.status:
                    raise child.failure()
            if moved != self._moved:
                moved, deadline = self._moved, trio.current_time() + PATIENCE_S
            if trio.current_time() > deadline:
                raise DemoError(f"nothing has moved for {PATIENCE_S:g} s until {what}")
            await trio.sleep(LOOK_S)

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:5.1f} s  {text}", file=sys.stderr, flush=True)

    # -- the run

    @property
    def _url(self) -> str:
        return f"({','.join(f'tcp://127.0.0.1:{port}' for port in self._ports)})"

    async def run(self) -> Account:
        """Carry the demo through.

        Checkpoint: always.  Cancellation: the processes are killed.
        Raises:
            DemoError: a process has ended, or something takes too long.
        """
        self._ports = await free_ports(NODES)
        for number in range(1, NODES + 1):
            self._start_node(number)
        # Java takes its time, so the query starts beside the nodes.
        self._start_query()
        await self._until("the nodes serve", lambda: all(child in self._urls for child in self._nodes.values()))
        async with AsyncExitStack() as stack:
            for port in self._ports:
                client = connect(f"tcp://127.0.0.1:{port}", **CLIENT)
                self._clients.append(await stack.enter_async_context(client))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._produce)
                nursery.start_soon(self._hear_alerts)
                await self._strike_node()
                await self._strike_query()
                await self._finish()
                nursery.cancel_scope.cancel()
        account = self.account
        account.batches, account.seconds = self._progress.confirmed + 1, time.monotonic() - self._began
        return account

    async def _strike_node(self) -> None:
        number, strikes = self._strikes.node, self._strikes
        await self._until("the first flights are read", lambda: self._confirmed >= strikes.node_at and self._read > 0)
        node = self._nodes[number]
        node.kill()
        await node.ended.wait()
        self._note(f"{node.name} killed after {self._confirmed:,} flights, of which {self._read:,} were read")
        self._start_node(number)
        await self._until(f"{node.name} serves again", lambda: self._nodes[number] in self._urls)
        self._say(f"{node.name} serves again")

    async def _strike_query(self) -> None:
        await self._until("half of the flights are read", lambda: self._confirmed >= self._strikes.query_at)
        query = self._query
        assert query is not None
        query.kill()
        await query.ended.wait()
        self._note(f"query killed after {self._confirmed:,} flights, in batch {self._progress.confirmed + 1}")
        self._start_query()
        last = self._query
        await self._until("the query goes on", lambda: last in self._urls)
        self._say("the query goes on")

    @property
    def _read(self) -> int:
        return self._progress.sent

    def _note(self, text: str) -> None:
        self._say(text)
        self.account.strikes.append(text)

    # -- clients

    async def _insist(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call until it is answered: a node that was killed comes back."""
        while True:
            try:
                return await call()
            except MeshqError:
                await trio.sleep(LOOK_S)

    async def _waiting(self, queue: str) -> int:
        """How many messages the nodes have in a queue."""
        found = [await self._insist(partial(client.queue, queue)) for client in self._clients]
        return sum(one.ready for one in found)

    async def _waits_for_less(self, queue: str, most: int) -> None:
        """Wait until the nodes have at most so many messages in a queue."""
        last, deadline = -1, 0.0
        while (waiting := await self._waiting(queue)) > most:
            if waiting != last:
                last, deadline = waiting, trio.current_time() + PATIENCE_S
            if trio.current_time() > deadline:
                raise DemoError(f"for {PATIENCE_S:g} s {waiting:,} messages have waited in the queue {queue!r}")
            await trio.sleep(LOOK_S)

    async def _produce(self) -> None:
        """Send all flights, each as a line of the file, to one node after the other, and not far ahead of the query."""
        lines, said = self._lines, 0
        for number, at in enumerate(range(0, len(lines), BATCH)):
            if number % NODES == 0:
                await self._waits_for_less(QUEUE, self._most)
            await self._send(number, lines[at : at + BATCH])
            self._confirmed += len(lines[at : at + BATCH])
            if self._confirmed * 10 // len(lines) > said:
                said = self._confirmed * 10 // len(lines)
                self._say(f"{self._confirmed:,} of {len(lines):,} flights sent, {len(self.account.alerts):,} alerts")

    async def _send(self, number: int, lines: list[bytes]) -> None:
        # Where nobody knows whether they are there they are sent again, and their ids say what is there.
        ids = [b"%d-%d" % (number, row) for row in range(len(lines))]
        messages = [Message(line, duplicate_id=one) for line, one in zip(lines, ids, strict=True)]
        client = self._clients[number % NODES]
        await self._insist(lambda: client.send_many(QUEUE, messages))
        self._moved += 1

    async def _hear_alerts(self) -> None:
        """The service: take the alerts, and acknowledge them."""
        account, settled = self.account, set[str]()
        client = self._clients[-1]
        while True:
            try:
                async with client.consumer(ALERTS) as consumer:
                    while True:
                        batch = await consumer.receive_many(ALERTS_BATCH)
                        for one in batch:
                            account.again += str(one.message_id) in settled
                            account.alerts[str(one.message_id)] = parse_hour(one.body.decode())
                        await consumer.ack(*batch, confirm=True)
                        settled.update(str(one.message_id) for one in batch)
                        self._moved += 1
            except MeshqError:
                # What was not confirmed comes again, or was carried out all the same.
                await trio.sleep(LOOK_S)

    # -- the end

    async def _finish(self) -> None:
        lines, account = self._lines, self.account
        await self._until("all flights are sent", lambda: self._confirmed == len(lines))
        await self._waits_for_less(QUEUE, 0)
        # Everything else is in batches that are finished.
        last = time.gmtime(seconds_of(self._hours[-1]) + self._watermark_s + 2 * HOUR_S)
        await self._send(-1, [LAST % time.strftime("%Y-%m-%dT%H:00:00Z", last).encode()])
        seen, quiet_at = -1, trio.current_time() + QUIET_S
        while seen < len(account.expected) or len(account.alerts) < len(account.expected_alerts):
            found = await self._waiting(DELAYS) + len(account.alerts)
            if found != seen:
                seen, quiet_at = found, trio.current_time() + QUIET_S
            if trio.current_time() > quiet_at:
                break
            await trio.sleep(LOOK_S)
        await self._take_table()
        account.left += await self._left()

    async def _take_table(self) -> None:
        query = self._query
        assert query is not None
        await query.tell(End())
        await self._until("the table is written", lambda: self._progress.finished)
        await query.end()
        await query.ended.wait()
        self._read_table()

    def _read_table(self) -> None:
        text = Path(self._folder, "query", TABLE).read_text(encoding="utf-8")
        self.account.table = [parse_hour(line) for line in text.splitlines()]

    async def _left(self) -> list[str]:
        """Return sentences about stages, owned cursors and alerts that are left behind."""
        found: list[str] = []
        for client in self._clients:
            found += [f"a stage is left: {stage}" for stage in await client.stages()]
            found += [f"a cursor is held: {one}" for one in await client.cursors() if one.holder]
        if waiting := await self._waiting(ALERTS):
            found.append(f"{waiting:,} alerts wait")
        return found


def account_table(account: Account) -> str:
    """Return the account as lines."""
    good = [
        f"{account.flights:,} flights, {len(account.expected):,} windows and {len(account.expected_alerts):,} alerts: "
        "each window as in the file, each alert once."
    ]
    head = [*account.strikes, f"{account.batches:,} batches in {account.seconds:.0f} s"]
    return "\n".join([*head, *(account.differences or good)])


async def run_sparked(options: SparkOptions) -> Account:
    """Run the demo; no process and no file is left.

    Checkpoint: always.  Cancellation: the processes are killed.
    Raises: DemoError: it could not be carried through.
    """
    lines = sorted(read_lines(find_file()), key=hour_of)[: options.rows]
    strikes = plan_strikes(options.seed, len(lines))
    with ungrouped(), tempfile.TemporaryDirectory(prefix="meshq-demo-") as folder:
        async with trio.open_nursery() as nursery:
            account = await SparkDemo(folder, lines, strikes, nursery).run()
            nursery.cancel_scope.cancel()
    return account
