"""The command of the demo: options in, exit status out, and no files or processes left."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from meshq.demo._director import Director
from meshq.demo._flights import find_file
from meshq.demo._options import Options, parse_options
from meshq.demo._progress import ProgressView, progress_view
from meshq.demo._result_format import Result, as_json, as_table
from meshq.errors import MeshqError, SettingsError, UsageError

#: After a signal, or a failure, the processes may take so long to end in peace.
STOP_SECONDS: Final = 10.0
SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
STATUS_GOOD: Final = 0
STATUS_DIFFERS: Final = 1
STATUS_USAGE: Final = 2
#: A shell's way to say that a signal ended a program.
STATUS_SIGNAL: Final = 128


@attrs.define(eq=False)
class Interruption:
    """The signals that want the demo to end: cleanly at the first, at once at the second."""

    #: Around the run; and around the wait for processes that end in peace.
    run: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    peace: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    signal: int = 0

    async def watch(self, signals: AsyncIterable[int]) -> None:
        """Wait for signals, for ever."""
        async for number in signals:
            if self.signal:
                self.peace.cancel()
            self.signal = self.signal or number
            self.run.cancel()


@contextmanager
def data_directory(given: str | None) -> Iterator[str]:
    """The directory of the broker's data: the given one, or a temporary directory.

    Raises:
        SettingsError: what was given isn't an empty or missing directory.
    """
    if given is None:
        path = tempfile.mkdtemp(prefix="meshq-demo-")
        try:
            yield path
        finally:
            shutil.rmtree(path)
        return
    try:
        names = os.listdir(given)
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise SettingsError("data_dir", given, f"a directory that is empty or missing ({error.strerror})") from error
    if names:
        raise SettingsError("data_dir", given, "a directory that is empty or missing: flights in it would come again")
    yield given


async def _in_peace(director: Director, interruption: Interruption) -> None:
    """Let the processes that are at work end by themselves, for a while; one that still starts has nothing to end."""
    children = list(director.processes.children)
    interruption.peace.deadline = trio.current_time() + STOP_SECONDS
    with interruption.peace:
        for child in children:
            if director.processes.is_ready(child):
                await child.end()
            else:
                child.kill()
        for child in children:
            await child.ended.wait()


async def _run(options: Options, path: Path, view: ProgressView, interruption: Interruption) -> Result | None:
    """Carry the demo through; None if a signal came first.

    Raises:
        MeshqError: it could not be carried through.
    """
    failure: MeshqError | None = None
    result: Result | None = None
    with data_directory(options.data_dir) as data_dir:
        async with trio.open_nursery() as nursery:
            director = Director(options, path, data_dir, nursery=nursery, view=view)
            with interruption.run:
                try:
                    result = await director.run()
                except MeshqError as error:
                    failure = error
            await _in_peace(director, interruption)
            nursery.cancel_scope.cancel()
    if failure is not None and not interruption.signal:
        raise failure
    return result


async def _supervise(options: Options, path: Path) -> int:
    """The demo from its first process to its last; returns the exit status."""
    interruption = Interruption()
    result: Result | None = None
    failure: MeshqError | None = None
    with trio.open_signal_receiver(*SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interruption.watch, signals)
            with progress_view() as view:
                try:
                    result = await _run(options, path, view, interruption)
                except MeshqError as error:
                    failure = error
            nursery.cancel_scope.cancel()
    if interruption.signal:
        print(f"python -m meshq demo: ended by {signal.Signals(interruption.signal).name}", file=sys.stderr)
        return STATUS_SIGNAL + interruption.signal
    if failure is not None:
        raise failure
    assert result is not None
    print(as_json(result) if options.json else as_table(result), flush=True)
    return STATUS_DIFFERS if result.differences else STATUS_GOOD


def _balanced(arguments: Sequence[str]) -> int:
    """The demo of balancers; returns the exit status."""
    from meshq.demo._balanced import parse_devices, run_balanced, table

    spread = trio.run(run_balanced, parse_devices(arguments))
    print(table(spread), flush=True)
    return STATUS_DIFFERS if spread.differences else STATUS_GOOD


def _paired(arguments: Sequence[str]) -> int:
    """The demos of backups; returns the exit status."""
    from meshq.demo._paired import account_table, parse_paired, run_paired

    account = trio.run(run_paired, parse_paired(arguments))
    print(account_table(account), flush=True)
    return STATUS_DIFFERS if account.differences else STATUS_GOOD


def _networked(arguments: Sequence[str]) -> int:
    """The demo of a network; returns the exit status."""
    from meshq.demo._networked import parse_network, run_networked
    from meshq.demo._paired import account_table

    account = trio.run(run_networked, parse_network(arguments))
    print(account_table(account), flush=True)
    return STATUS_DIFFERS if account.differences else STATUS_GOOD


def _sparked(arguments: Sequence[str]) -> int:
    """The demo of Spark; returns the exit status."""
    from meshq.demo._sparked import account_table, parse_sparked, run_sparked

    account = trio.run(run_sparked, parse_sparked(arguments))
    print(account_table(account), flush=True)
    return STATUS_DIFFERS if account.differences else STATUS_GOOD


def main(arguments: Sequence[str]) -> int:
    """Run the demo as the command line says; returns the exit status."""
    try:
        if "--balancer" in arguments:
            return _balanced(arguments)
        if "--network" in arguments:
            return _networked(arguments)
        if "--spark" in arguments:
            return _sparked(arguments)
        if any(one == "--ha" or one.startswith("--ha=") for one in arguments):
            return _paired(arguments)
        options = parse_options(arguments)
        if os.name != "posix":
            raise UsageError("the demo kills processes with SIGKILL, which this system doesn't have")
        return trio.run(_supervise, options, find_file())
    except KeyboardInterrupt:
        return STATUS_SIGNAL + signal.SIGINT
    except MeshqError as error:
        print(f"python -m meshq demo: {error}", file=sys.stderr)
        return STATUS_USAGE if isinstance(error, UsageError) else STATUS_DIFFERS
