"""A process that receives, one of several on the same queue.

One task is handed batches and reports each; another acknowledges them in the same order, as far as it holds tickets,
and reports what became of that.
"""

from __future__ import annotations

import math
import time
from typing import Final

import attrs
import trio

from meshq.client import Client, Consumer, Delivery, Disconnected, FailedOver, Reattached, connect
from meshq.demo._flights_format import parse
from meshq.demo._kill_plan import BATCH
from meshq.demo._page_format import PAGE, lines_of
from meshq.demo._parent import Parent
from meshq.demo._report_format import (
    ALTERED,
    REDELIVERED,
    Acknowledging,
    AckQuota,
    Connection,
    Delivered,
    End,
    Holding,
    Idle,
    MoveTo,
    Ready,
    Report,
    Settled,
)
from meshq.demo._settings import CLIENT, QUEUE, ROAMS
from meshq.errors import BrokenError, StaleDeliveryError

#: After so long without a message the parent is told, who then asks the broker whether anything is left.
IDLE_SECONDS: Final = 0.25


class Columns:
    """The columns of a report of deliveries; a page of flights is as many rows as it has lines."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.carriers: list[str] = []
        self.delays: list[int | None] = []
        self.flags = bytearray()

    def add(self, delivery: Delivery) -> int:
        """Add the rows of a message; return how many.  Each part of a message has its say, and they must fit."""
        redelivered = REDELIVERED if delivery.redelivered else 0
        properties = delivery.properties
        if PAGE in properties:
            return self._add_page(lines_of(delivery.body, properties, delivery.duplicate_id), delivery, redelivered)
        key, flag = delivery.duplicate_id or b"", redelivered
        delay: int | None = None
        try:
            flight = parse(delivery.body)
        except ValueError:
            flag |= ALTERED
        else:
            delay = flight.delay
            expected = {"carrier": flight.carrier, "origin": flight.origin, "month": flight.month}
            if key != flight.key or properties != expected:
                flag |= ALTERED
        self._append(key, str(properties.get("carrier", "?")), delay, flag)
        return 1

    def _add_page(self, lines: list[bytes] | None, delivery: Delivery, flag: int) -> int:
        try:
            flights = [parse(line) for line in lines or ()]
        except ValueError:
            flights = []
        if not flights:
            self._append(delivery.duplicate_id or b"", "?", None, flag | ALTERED)
            return 1
        for flight in flights:
            self._append(flight.key, flight.carrier, flight.delay, flag)
        return len(flights)

    def _append(self, key: bytes, carrier: str, delay: int | None, flag: int) -> None:
        self.keys.append(key)
        self.carriers.append(carrier)
        self.delays.append(delay)
        self.flags.append(flag)


@attrs.frozen
class Batch:
    """A batch that was received: its number, its messages, and how many flights each message is."""

    number: int
    deliveries: list[Delivery]
    flights: list[int]

    def settled(self, confirmed: bytes) -> Settled:
        """Make the report of its acknowledgement; ``confirmed`` has a byte for each message."""
        each = zip(confirmed, self.flights, strict=True)
        return Settled(self.number, b"".join(bytes([known]) * count for known, count in each))


def describe(number: int, at_ns: int, deliveries: list[Delivery], node: str) -> tuple[Batch, Delivered]:
    """Make a batch of the messages received at a node, and the report of the batch."""
    columns = Columns()
    batch = Batch(number, deliveries, [columns.add(delivery) for delivery in deliveries])
    report = Delivered(
        batch=number,
        at_ns=at_ns,
        keys=columns.keys,
        carriers=columns.carriers,
        delays=columns.delays,
        flags=bytes(columns.flags),
        node=node,
    )
    return batch, report


class Receiver:
    """Receives, reports and acknowledges."""

    def __init__(self, parent: Parent, window: int, *, roams: bool) -> None:
        self._parent = parent
        self._window = window
        self._settings = {**CLIENT, "use_topology": roams}
        # Batches that may still be acknowledged.
        self._tickets: float = math.inf
        self._changed = trio.Event()
        # Whether the parent still has to be told that nothing more is acknowledged, and whether something is just now.
        self._say_holding = False
        self._acknowledging = False
        # Told to end here: for good, or to go on at this place.  What is waited for then is cut off by the scope.
        self._ended = False
        self._next = ""
        self._waiting = trio.CancelScope()
        self._online = trio.Event()
        # The batches so far.
        self._number = 0

    def obey(self, command: Report) -> None:
        """The parent wants something."""
        if isinstance(command, AckQuota):
            self._tickets = math.inf if command.batches < 0 else command.batches
            self._say_holding = command.batches == 0
            self._change()
        elif isinstance(command, MoveTo):
            self._next = command.url
            self._waiting.cancel()
            self._change()
        elif isinstance(command, End):
            self._ended = True
            self._waiting.cancel()

    def _change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def work(self, url: str) -> None:
        """Take part, at one broker after another, until told to end."""
        await self._consume(url, moved=False)
        while self._next:
            url, self._next = self._next, ""
            self._tickets = math.inf
            await self._consume(url, moved=True)

    async def _consume(self, url: str, *, moved: bool) -> None:
        """Take part at one broker, until told to end or to move."""
        self._online = trio.Event()
        self._online.set()
        # Batches in the order in which they came.
        sender, batches = trio.open_memory_channel[Batch](math.inf)
        async with connect(url, **self._settings) as client, trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, client)
            nursery.start_soon(self._answer)
            async with client.consumer(QUEUE, window=self._window) as consumer:
                node = client.statistics().node_name
                await self._parent.say(Connection(up=True, node=node) if moved else Ready())
                async with trio.open_nursery() as tasks:
                    tasks.start_soon(self._acknowledge, consumer, batches)
                    await self._receive(client, consumer, sender)
                    sender.close()
            nursery.cancel_scope.cancel()

    async def _watch(self, client: Client) -> None:
        """Follow the connection.  While it is lost nothing more is handed over: what waits here comes again."""
        async for event in client.events():
            if isinstance(event, Disconnected):
                self._online = trio.Event()
                await self._parent.say(Connection(up=False))
            elif isinstance(event, Reattached | FailedOver):
                self._online.set()
                resumed = isinstance(event, Reattached)
                await self._parent.say(Connection(up=True, resumed=resumed, node=event.node_name))

    async def _answer(self) -> None:
        """Say that acknowledging has stopped, once it has."""
        while True:
            if self._say_holding and not self._acknowledging:
                self._say_holding = False
                await self._parent.say(Holding())
            await self._changed.wait()

    async def _receive(self, client: Client, consumer: Consumer, sender: trio.MemorySendChannel[Batch]) -> None:
        while not self._ended and not self._next:
            deliveries: list[Delivery] = []
            with trio.CancelScope() as self._waiting:
                await self._online.wait()
                deliveries = await consumer.receive_many(BATCH, timeout=IDLE_SECONDS)
            at_ns = time.monotonic_ns()
            if not deliveries:
                await self._parent.say(Idle())
                continue
            self._number += 1
            batch, report = describe(self._number, at_ns, deliveries, client.statistics().node_name)
            await self._parent.say(report)
            sender.send_nowait(batch)

    async def _acknowledge(self, consumer: Consumer, batches: trio.MemoryReceiveChannel[Batch]) -> None:
        async for batch in batches:
            while not self._tickets and not self._next:
                await self._changed.wait()
            if self._next:
                # The consumer's end gives it back.
                await self._parent.say(batch.settled(bytes(len(batch.deliveries))))
                continue
            self._acknowledging = True
            self._tickets -= 1
            if self._tickets != math.inf:
                await self._parent.say(Acknowledging())
            confirmed = await acknowledge(consumer, batch.deliveries)
            await self._parent.say(batch.settled(confirmed))
            self._acknowledging = False
            self._change()


async def acknowledge(consumer: Consumer, deliveries: list[Delivery]) -> bytes:
    """Acknowledge a batch; returns a byte for each message, 1 if that was confirmed."""
    try:
        await consumer.ack(*deliveries, confirm=True)
    except StaleDeliveryError as error:
        results = error.results or [error] * len(deliveries)
        return bytes(result is None for result in results)
    except BrokenError:
        return bytes(len(deliveries))
    return b"\1" * len(deliveries)


async def run_consumer(parent: Parent, window: str, roams: str) -> None:
    """Receive, report, acknowledge; with so many messages at once that are not acknowledged.

    ``roams``: ``ROAMS`` if it goes on at other nodes of the cluster when its own one is gone.
    """
    receiver = Receiver(parent, int(window), roams=roams == ROAMS)
    await parent.attend(receiver.work, receiver.obey)
