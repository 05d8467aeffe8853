"""The nodes of a demo of backups as processes, with a producer and a consumer that connect again after each loss."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Generic, TypeVar

import trio

from meshq.client import connect
from meshq.demo._flights_format import parse
from meshq.demo._paired._account import FlightAccount
from meshq.demo._parent import Parent
from meshq.demo._process import Child
from meshq.demo._processes import Patience, StalledError
from meshq.demo._report_format import InSync, Ready, Report, Role
from meshq.demo._settings import QUEUE
from meshq.errors import MeshqError
from meshq.message import Message
from meshq.node import Broker
from meshq.notifications import InSyncChanged, RoleChanged

#: The shares of the flights after which the node that serves is killed, and stopped.
KILL_AT: Final = 0.2
STOP_AT: Final = 0.6
ROWS_MIN: Final = 2_000
BATCH: Final = 500
#: Of few flights so many batches are made, with a pause between them.
BATCHES_MIN: Final = 80
PAUSE_S: Final = 0.01
CLIENT: Final[dict[str, Any]] = {
    "reconnect_attempts": float("inf"),
    "initial_connect_attempts": 1_000,
    "retry_interval": 0.05,
    "max_retry_interval": 0.25,
}
A = TypeVar("A", bound=FlightAccount)


async def serve(parent: Parent, broker: Broker) -> None:
    """Run a broker, and tell of its roles, until the parent says nothing more."""
    events = broker.events()

    async def tell() -> None:
        async for event in events:
            if isinstance(event, RoleChanged):
                await parent.say(Role(event.role, event.epoch, event.reason, event.without_service))
            elif isinstance(event, InSyncChanged):
                await parent.say(InSync(len(event.members)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell)
        async with broker:
            await parent.say(Ready(url=broker.urls[0]))
            while await parent.hear() is not None:
                pass
        nursery.cancel_scope.cancel()


class Flow(Generic[A]):
    """Flights from a producer to a consumer, and the nodes on their way."""

    def __init__(self, account: A, nursery: trio.Nursery, **client: Any) -> None:
        self._nursery = nursery
        self._client = {**CLIENT, **client}
        self._children: dict[str, Child] = {}
        self._killed: set[Child] = set()
        self._urls: dict[str, str] = {}
        # By the name of a node that serves how many nodes have all that was confirmed.
        self._in_sync: dict[str, int] = {}
        # Rows that the producer may send by now: the next step comes under load, and not after everything.
        self._limit = int(len(account.lines) * STOP_AT)
        # Rows at a time, and the seconds between them.
        self._batch = min(BATCH, len(account.lines) // BATCHES_MIN)
        self._pause_s = PAUSE_S
        self._moved = 0
        self.account: A = account

    @asynccontextmanager
    async def flowing(self, source: str, sink: str) -> AsyncIterator[None]:
        """Send at one URL and receive at the other one; at the end of the block wait until all has come.

        Raises:
            DemoError: nothing moves any more.
        """
        account, done = self.account, trio.Event()
        async with trio.open_nursery() as nursery:

            async def consume() -> None:
                await self._consume(sink)
                done.set()

            nursery.start_soon(self._produce, source)
            nursery.start_soon(consume)
            yield
            await self.until("all flights are sent", lambda: account.confirmed == len(account.lines))
            # Of one that is lost the account says so.
            with suppress(StalledError):
                await self.until("all flights have come", done.is_set)
            nursery.cancel_scope.cancel()

    def start(self, name: str, role: str, *arguments: str) -> Child:
        """Start a node; its end is an error, unless it was killed."""
        child = Child(name, role, *arguments)
        self._children[name] = child
        self._nursery.start_soon(self._attend, child)
        return child

    async def _attend(self, child: Child) -> None:
        await child.attend(self._heard)
        if child not in self._killed:
            raise child.failure()

    def kill(self, child: Child) -> None:
        """Kill a node."""
        self._killed.add(child)
        child.kill()

    def _heard(self, child: Child, report: Report) -> None:
        if isinstance(report, Ready):
            self._urls[child.name] = report.url
        elif isinstance(report, InSync):
            self._in_sync[child.name] = report.nodes
        elif isinstance(report, Role):
            self.changed(child.name, report)

    def changed(self, name: str, report: Role) -> None:
        """Note a change of role."""
        raise NotImplementedError

    async def until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait until something is so.  Raises: StalledError: nothing has moved for too long."""
        patience = Patience(lambda: (self._moved,))
        while not is_so():
            patience.check(what)
            await trio.sleep(0.02)

    async def _produce(self, url: str) -> None:
        lines, account = self.account.lines, self.account
        async with connect(url, **self._client) as client:
            while account.confirmed < len(lines):
                rows = lines[account.confirmed : min(account.confirmed + self._batch, self._limit)]
                if not rows:
                    await trio.sleep(0.02)
                    continue
                try:
                    await client.send_many(QUEUE, [Message(row, duplicate_id=parse(row).key) for row in rows])
                except MeshqError:
                    # Whether they are there nobody knows: they are sent again, and their ids say what is there.
                    await trio.sleep(0.02)
                    continue
                account.confirmed += len(rows)
                self._moved += 1
                await trio.sleep(self._pause_s)

    async def _consume(self, url: str) -> None:
        account = self.account
        async with connect(url, **self._client) as client:
            while len(account.arrived) < len(account.lines):
                try:
                    async with client.consumer(QUEUE, window=4 * BATCH) as consumer:
                        while len(account.arrived) < len(account.lines):
                            batch = await consumer.receive_many(BATCH, timeout=0.5)
                            keys = [account.came(bytes(one.body)) for one in batch]
                            if batch:
                                self._moved += 1
                                await consumer.ack(*batch, confirm=True)
                                account.settled.update(keys)
                except MeshqError:
                    # What was not confirmed comes again, or was carried out all the same.
                    await trio.sleep(0.02)
            # What comes now was not acknowledged before.
            async with client.consumer(QUEUE) as consumer:
                for one in await consumer.receive_many(BATCH, timeout=1):
                    account.came(bytes(one.body))
