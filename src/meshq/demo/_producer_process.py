"""The process that sends."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Final

import trio

from meshq.client import Client, Producer, connect
from meshq.demo._flights import parse_lines, read_lines
from meshq.demo._flights_format import Flight
from meshq.demo._page_format import page_body, page_id, page_properties
from meshq.demo._parent import Parent
from meshq.demo._report_format import Decide, Decided, End, Limit, Prepare, Prepared, Progress, Ready, Report, SendPages
from meshq.demo._settings import CLIENT, QUEUE
from meshq.message import PropertyValue

#: Rows between two reports.
REPORT_ROWS: Final = 1_000
#: The transaction that is prepared at one node and decided at another.
XID: Final = b"flights in doubt"


class Sender:
    """Sends the lines of the file, no further than it is told."""

    def __init__(self, parent: Parent, lines: list[bytes], flights: list[Flight]) -> None:
        self._parent = parent
        self._lines = lines
        self._flights = flights
        # Rows that were sent, and those that may be by now; orders that come next; rung when there is more of these.
        self._sent = 0
        self._limit = 0
        self._orders: deque[Report] = deque()
        self._raised = trio.Event()
        self._ended = trio.Event()

    def obey(self, command: Report) -> None:
        """The parent allows more."""
        if isinstance(command, Limit):
            self._limit = min(command.rows, len(self._lines))
            self._raised.set()
        elif isinstance(command, Prepare | SendPages | Decide):
            self._orders.append(command)
            self._raised.set()
        elif isinstance(command, End):
            self._ended.set()

    async def work(self, url: str) -> None:
        """Send everything, say when all of it is confirmed (the producer's block is left), and wait to be dismissed."""
        rows = len(self._lines)
        async with connect(url, **CLIENT) as client:
            async with client.producer(QUEUE) as producer:
                await self._parent.say(Ready())
                while self._sent < rows:
                    if self._orders:
                        await self._carry_out(self._orders.popleft(), producer)
                    elif self._sent >= self._limit:
                        await self._wait(producer)
                    else:
                        await self._send(producer, min(self._limit, self._sent + REPORT_ROWS))
            await self._parent.say(Progress(rows, rows, finished=True))
        await self._ended.wait()

    async def _wait(self, producer: Producer) -> None:
        await producer.flush()
        await self._parent.say(Progress(self._sent, self._sent))
        while self._sent >= self._limit and not self._orders:
            self._raised = trio.Event()
            await self._raised.wait()

    async def _send(self, producer: Producer, stop: int) -> None:
        """Send a message for each flight: its line as it stands in the file."""
        send = producer.send
        for row in range(self._sent, stop):
            flight = self._flights[row]
            await send(self._lines[row], properties=_properties(flight), duplicate_id=flight.key)
        self._sent = stop
        await self._parent.say(Progress(stop, stop - producer.unconfirmed))

    async def _carry_out(self, order: Report, producer: Producer) -> None:
        if isinstance(order, Prepare):
            async with connect(order.url, **CLIENT) as client:
                await self._prepare(client, self._sent + order.rows)
            await self._parent.say(Prepared(self._sent))
        elif isinstance(order, SendPages):
            await self._send_pages(producer, order.pages, order.rows)
        elif isinstance(order, Decide):
            async with connect(order.url, **CLIENT) as client:
                found = XID in await client.recover()
                if found:
                    await client.commit(XID)
            await self._parent.say(Decided(found))

    async def _prepare(self, client: Client, stop: int) -> None:
        """Send a message for each flight in a transaction, and prepare that."""
        async with client.transaction(XID) as transaction:
            for row in range(self._sent, stop):
                flight = self._flights[row]
                await transaction.send(QUEUE, self._lines[row], properties=_properties(flight), duplicate_id=flight.key)
            await transaction.prepare()
        self._sent = stop

    async def _send_pages(self, producer: Producer, pages: int, rows: int) -> None:
        """Send a message for so many flights at a time."""
        for number in range(1, pages + 1):
            lines = self._lines[self._sent : self._sent + rows]
            await producer.send(
                page_body(lines), properties=page_properties(number, rows), duplicate_id=page_id(number)
            )
            self._sent += rows


def _properties(flight: Flight) -> dict[str, PropertyValue]:
    return {"carrier": flight.carrier, "origin": flight.origin, "month": flight.month}


async def run_producer(parent: Parent, path: str, rows: str) -> None:
    """Send so many rows of the file at this path."""
    lines = read_lines(Path(path), int(rows))
    sender = Sender(parent, lines, await parse_lines(lines))
    await parent.attend(sender.work, sender.obey)
