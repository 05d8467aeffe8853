"""A process that receives, one of several on the same queue.

One task is handed batches and reports each; another acknowledges them in the same order, as far as it holds tickets,
and reports what became of that.
"""

from __future__ import annotations

import math
import time
from typing import Final

import trio

from meshq.client import Client, Consumer, Delivery, Disconnected, FailedOver, Reattached, connect
from meshq.demo._flights_format import parse
from meshq.demo._kill_plan import BATCH
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
    Ready,
    Report,
    Settled,
)
from meshq.demo._settings import CLIENT, QUEUE
from meshq.errors import BrokenError, StaleDeliveryError

#: After so long without a message the parent is told, who then asks the broker whether anything is left.
IDLE_SECONDS: Final = 0.25


def describe(batch: int, at_ns: int, deliveries: list[Delivery]) -> Delivered:
    """Make the report of a batch.  Each part of a message has its say, and they must fit each other."""
    keys: list[bytes] = []
    carriers: list[str] = []
    delays: list[int | None] = []
    flags = bytearray()
    for delivery in deliveries:
        flag = REDELIVERED if delivery.redelivered else 0
        key, properties = delivery.duplicate_id or b"", delivery.properties
        try:
            flight = parse(delivery.body)
        except ValueError:
            delay = None
            flag |= ALTERED
        else:
            delay = flight.delay
            expected = {"carrier": flight.carrier, "origin": flight.origin, "month": flight.month}
            if key != flight.key or properties != expected:
                flag |= ALTERED
        keys.append(key)
        carriers.append(str(properties.get("carrier", "?")))
        delays.append(delay)
        flags.append(flag)
    return Delivered(batch=batch, at_ns=at_ns, keys=keys, carriers=carriers, delays=delays, flags=bytes(flags))


class Receiver:
    """Receives, reports and acknowledges."""

    def __init__(self, parent: Parent, window: int) -> None:
        self._parent = parent
        self._window = window
        # Batches that may still be acknowledged.
        self._tickets: float = math.inf
        self._changed = trio.Event()
        # Whether the parent still has to be told that nothing more is acknowledged, and whether something is just now.
        self._say_holding = False
        self._acknowledging = False
        # Told to end; what is waited for then is cut off by the scope.
        self._ended = False
        self._waiting = trio.CancelScope()
        self._online = trio.Event()
        self._online.set()
        # Batches in the order in which they came.
        self._sender, self._batches = trio.open_memory_channel[tuple[int, list[Delivery]]](math.inf)

    def obey(self, command: Report) -> None:
        """The parent wants something."""
        if isinstance(command, AckQuota):
            self._tickets = math.inf if command.batches < 0 else command.batches
            self._say_holding = command.batches == 0
            self._change()
        elif isinstance(command, End):
            self._ended = True
            self._waiting.cancel()

    def _change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def work(self, url: str) -> None:
        """Take part until told to end."""
        async with connect(url, **CLIENT) as client, trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, client)
            nursery.start_soon(self._answer)
            async with client.consumer(QUEUE, window=self._window) as consumer:
                await self._parent.say(Ready())
                async with trio.open_nursery() as tasks:
                    tasks.start_soon(self._acknowledge, consumer)
                    await self._receive(consumer)
                    self._sender.close()
            nursery.cancel_scope.cancel()

    async def _watch(self, client: Client) -> None:
        """Follow the connection.  While it is lost nothing more is handed over: what waits here comes again."""
        async for event in client.events():
            if isinstance(event, Disconnected):
                self._online = trio.Event()
                await self._parent.say(Connection(up=False))
            elif isinstance(event, Reattached | FailedOver):
                self._online.set()
                await self._parent.say(Connection(up=True, resumed=isinstance(event, Reattached)))

    async def _answer(self) -> None:
        """Say that acknowledging has stopped, once it has."""
        while True:
            if self._say_holding and not self._acknowledging:
                self._say_holding = False
                await self._parent.say(Holding())
            await self._changed.wait()

    async def _receive(self, consumer: Consumer) -> None:
        number = 0
        while not self._ended:
            deliveries: list[Delivery] = []
            with trio.CancelScope() as self._waiting:
                await self._online.wait()
                deliveries = await consumer.receive_many(BATCH, timeout=IDLE_SECONDS)
            at_ns = time.monotonic_ns()
            if not deliveries:
                await self._parent.say(Idle())
                continue
            number += 1
            await self._parent.say(describe(number, at_ns, deliveries))
            self._sender.send_nowait((number, deliveries))

    async def _acknowledge(self, consumer: Consumer) -> None:
        async for number, deliveries in self._batches:
            while not self._tickets:
                await self._changed.wait()
            self._acknowledging = True
            self._tickets -= 1
            if self._tickets != math.inf:
                await self._parent.say(Acknowledging())
            confirmed = await acknowledge(consumer, deliveries)
            await self._parent.say(Settled(number, confirmed))
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


async def run_consumer(parent: Parent, window: str) -> None:
    """Receive, report, acknowledge; with so many messages at once that are not acknowledged."""
    receiver = Receiver(parent, int(window))
    await parent.attend(receiver.work, receiver.obey)
