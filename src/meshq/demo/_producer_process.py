"""The process that sends."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trio

from meshq.client import Producer, connect
from meshq.demo._flights import parse_lines, read_lines
from meshq.demo._flights_format import Flight
from meshq.demo._parent import Parent
from meshq.demo._report_format import End, Limit, Progress, Ready, Report
from meshq.demo._settings import CLIENT, QUEUE
from meshq.message import PropertyValue

#: Rows between two reports.
REPORT_ROWS: Final = 1_000


class Sender:
    """Sends the lines of the file, no further than it is told."""

    def __init__(self, parent: Parent, lines: list[bytes], flights: list[Flight]) -> None:
        self._parent = parent
        self._lines = lines
        self._flights = flights
        # Rows that may be sent by now, and rung when there are more.
        self._limit = 0
        self._raised = trio.Event()
        self._ended = trio.Event()

    def obey(self, command: Report) -> None:
        """The parent allows more."""
        if isinstance(command, Limit):
            self._limit = min(command.rows, len(self._lines))
            self._raised.set()
        elif isinstance(command, End):
            self._ended.set()

    async def work(self, url: str) -> None:
        """Send everything, say when all of it is confirmed (the producer's block is left), and wait to be dismissed."""
        rows = len(self._lines)
        async with connect(url, **CLIENT) as client:
            async with client.producer(QUEUE) as producer:
                await self._parent.say(Ready())
                sent = 0
                while sent < rows:
                    if sent >= self._limit:
                        await self._wait(producer, sent)
                        continue
                    stop = min(self._limit, sent + REPORT_ROWS)
                    await self._send(producer, sent, stop)
                    sent = stop
                    await self._parent.say(Progress(sent, sent - producer.unconfirmed))
            await self._parent.say(Progress(rows, rows, finished=True))
        await self._ended.wait()

    async def _wait(self, producer: Producer, sent: int) -> None:
        await producer.flush()
        await self._parent.say(Progress(sent, sent))
        while sent >= self._limit:
            self._raised = trio.Event()
            await self._raised.wait()

    async def _send(self, producer: Producer, start: int, stop: int) -> None:
        """Send a message for each flight: its line as it stands in the file."""
        send = producer.send
        for line, flight in zip(self._lines[start:stop], self._flights[start:stop], strict=True):
            properties: dict[str, PropertyValue] = {
                "carrier": flight.carrier,
                "origin": flight.origin,
                "month": flight.month,
            }
            await send(line, properties=properties, duplicate_id=flight.key)


async def run_producer(parent: Parent, path: str, rows: str) -> None:
    """Send so many rows of the file at this path."""
    lines = read_lines(Path(path), int(rows))
    sender = Sender(parent, lines, await parse_lines(lines))
    await parent.attend(sender.work, sender.obey)
