"""The outer end of a process of the demo: started in a process group of its own, heard, killed, never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from meshq.demo._report_format import Report, ReportReader, pack
from meshq.errors import MeshqError

#: Bytes read at a time: a few batches of reports.
READ_BYTES: Final = 65_536
#: What is kept of a process's standard error, its end.
ERROR_BYTES: Final = 8_192
#: Seconds in which the processes that a killed process had started end.
GROUP_SECONDS: Final = 5.0


class DemoError(MeshqError):
    """The demo could not be carried through."""

    code = "demo"


@contextmanager
def ungrouped() -> Iterator[None]:
    """Raise a failure of the demo as itself, where tasks would raise it in a group.

    Raises: DemoError: the first that was raised inside.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        failures, rest = group.split(DemoError)
        if failures is None or rest is not None:
            raise
        failure: BaseException = failures
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        raise failure from group


class Child:
    """A process that plays a role."""

    def __init__(self, name: str, role: str, *arguments: str) -> None:
        self.name = name
        command = [sys.executable, "-m", "meshq.demo._child", role, *arguments]
        # Ctrl-C in a terminal reaches a whole process group: the parent alone decides what it means.
        self._popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, process_group=0
        )
        stdin, stdout, stderr = self._popen.stdin, self._popen.stdout, self._popen.stderr
        assert stdin is not None and stdout is not None and stderr is not None
        self._commands = trio.lowlevel.FdStream(os.dup(stdin.fileno()))
        self._reports = trio.lowlevel.FdStream(os.dup(stdout.fileno()))
        self._errors = trio.lowlevel.FdStream(os.dup(stderr.fileno()))
        for pipe in (stdin, stdout, stderr):
            pipe.close()
        self._reader = ReportReader()
        self._tail = b""
        #: Set when it has ended and everything it said was heard.
        self.ended: trio.Event = trio.Event()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._popen.returncode

    def failure(self) -> DemoError:
        """The error for an unexpected end of the process."""
        text = self._tail.decode(errors="replace").strip()
        return DemoError(f"the {self.name} ended with status {self.status}" + (f":\n{text}" if text else ""))

    async def tell(self, command: Report) -> None:
        """Give it a command.  Raises: DemoError: it is gone."""
        try:
            await self._commands.send_all(pack(command))
        except trio.BrokenResourceError:
            await self.ended.wait()
            raise self.failure() from None

    async def attend(self, heard: Callable[[Child, Report], None]) -> None:
        """Hear it until it ends, then bury it.

        Cancellation: it is killed.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hear, heard)
                nursery.start_soon(self._keep_errors)
        finally:
            self.kill()
            self._popen.wait()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + GROUP_SECONDS):
                # Whatever it has started has this end of the pipe, too, and is gone when nobody has it.
                await self._keep_errors()
            for stream in (self._commands, self._reports, self._errors):
                with trio.CancelScope(shield=True):
                    await stream.aclose()
            self.ended.set()

    async def _hear(self, heard: Callable[[Child, Report], None]) -> None:
        while data := await self._reports.receive_some(READ_BYTES):
            for report in self._reader.feed(data):
                heard(self, report)

    async def _keep_errors(self) -> None:
        while data := await self._errors.receive_some(READ_BYTES):
            self._tail = (self._tail + data)[-ERROR_BYTES:]

    async def end(self) -> None:
        """Tell it that nothing more will be said: it ends in peace."""
        await self._commands.aclose()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """Kill the process group by SIGKILL."""
        if self._popen.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
