"""The parent as a process of the demo sees it: reports go out, commands come in.

The end of the commands means that the parent is gone or has had enough: no process outlives it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from meshq.demo._report_format import Connect, Report, ReportReader, pack
from meshq.errors import invariant

#: Bytes read at a time; commands are short.
READ_BYTES: Final = 4_096


class Parent:
    """The parent process."""

    def __init__(self, commands: trio.abc.ReceiveStream, reports: trio.abc.SendStream) -> None:
        self._commands = commands
        self._reports = reports
        self._lock = trio.Lock()
        self._reader = ReportReader()
        self._waiting: deque[Report] = deque()

    async def say(self, report: Report) -> None:
        """Send a report; reports arrive in the order in which this was called."""
        async with self._lock:
            await self._reports.send_all(pack(report))

    async def hear(self) -> Report | None:
        """The next command; None when the parent says nothing more."""
        while not self._waiting:
            data = await self._commands.receive_some(READ_BYTES)
            if not data:
                return None
            self._waiting.extend(self._reader.feed(data))
        return self._waiting.popleft()

    async def attend(self, work: Callable[[str], Awaitable[None]], obey: Callable[[Report], None]) -> None:
        """Do the work at the broker that the first command names, and obey the commands that follow.

        Ends when the work is done, or with the parent.
        """
        first = await self.hear()
        if first is None:
            return
        invariant(isinstance(first, Connect), "the first command says where the broker is")
        assert isinstance(first, Connect)
        async with trio.open_nursery() as nursery:

            async def listen() -> None:
                while (command := await self.hear()) is not None:
                    obey(command)
                nursery.cancel_scope.cancel()

            nursery.start_soon(listen)
            await work(first.url)
            nursery.cancel_scope.cancel()
