"""The background thread of a blocking client or broker: a trio loop, and the way into it from other threads."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import outcome
import trio

from meshq.env import forks
from meshq.errors import ClosedError, MeshqError, UsageError

T = TypeVar("T")


def flat(error: BaseException) -> BaseException:
    """The first error inside groups of groups; a cancellation only if there is nothing else."""
    while isinstance(error, BaseExceptionGroup):
        others = error.split(trio.Cancelled)[1]
        error = (error if others is None else others).exceptions[0]
    return error


class Promise:
    """What a thread waits for: kept once by the loop, told in the waiting thread."""

    __slots__ = ("_error", "_lock", "_value", "kept")

    def __init__(self) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        #: Whether it is decided.
        self.kept = False
        self._lock = threading.Lock()
        self._lock.acquire()

    @property
    def fulfilled(self) -> bool:
        """Whether it is decided, and not by an error."""
        return self.kept and self._error is None

    def keep(self, result: outcome.Outcome[Any]) -> None:
        """It is decided; what comes later is ignored."""
        if self.kept:
            return
        if isinstance(result, outcome.Error):
            self._error = flat(result.error)
        else:
            self._value = result.unwrap()
        self.kept = True
        self._lock.release()

    def wait(self, cancel: Callable[[], None]) -> Any:
        """The value, or the error raised, in the calling thread.

        An interrupt cancels what is waited for and goes on once that has ended; a second one goes on at once.
        """
        try:
            self._decided()
        except BaseException:
            cancel()
            self._decided()
            raise
        if self._error is None:
            return self._value
        if isinstance(self._error, trio.Cancelled):
            raise ClosedError("the loop behind the call has ended", outcome="unknown")
        raise self._error

    def _decided(self) -> None:
        # The lock may have been got by a wait that was interrupted in the next moment.
        while not self.kept:
            self._lock.acquire()


class Loop:
    """A thread with a trio loop.  It starts and ends with the block of the one object that owns it."""

    def __init__(self, name: str) -> None:
        #: Whose thread it is, for errors and for the thread's own name.
        self.name = name
        self.state = "new"
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._end: trio.Event | None = None
        self._thread: threading.Thread | None = None
        self._forks = forks()
        # What threads wait for: a loop that dies leaves nobody waiting.
        self._promises: dict[Promise, None] = {}
        # What lives in the loop, in the order in which it came; and what is told when the thread has ended.
        self._guests: dict[Callable[[], Awaitable[None]], None] = {}
        self._farewells: dict[Callable[[], None], None] = {}

    # -- life, by the owner's thread

    def start(self) -> None:
        """Start the thread.

        Raises:
            UsageError: it was started before, or a task of an event loop is calling.
        """
        self._refuse_tasks()
        if self.state != "new":
            raise UsageError(f"{self.name} was used before; make another one")
        self.state = "open"
        self._forks = forks()
        started = Promise()
        self._promises[started] = None
        self._thread = threading.Thread(target=self._run, args=(started,), name=f"meshq: {self.name}", daemon=True)
        self._thread.start()
        try:
            started.wait(_nothing)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the thread; returns when it is gone.  Twice is silent, and so is a forked child, which has none."""
        thread, token, end = self._thread, self._token, self._end
        if thread is None or forks() != self._forks:
            return
        if token is not None and end is not None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(end.set)
        thread.join()

    def _run(self, started: Promise) -> None:
        ended: MeshqError = ClosedError(f"{self.name} is closed", outcome="unknown")
        try:
            trio.run(self._main, started)
        except BaseException as error:
            ended.__cause__ = flat(error)
            raise
        finally:
            self.state = "closed"
            for promise in list(self._promises):
                promise.keep(outcome.Error(ended))
            for farewell in list(self._farewells):
                farewell()

    async def _main(self, started: Promise) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._end = trio.Event()
        async with trio.open_nursery() as self._nursery:
            self.keep(started, outcome.Value(None))
            try:
                await self._end.wait()
            finally:
                # The end, or a defect in the loop, after which nobody shall wait either.
                for leave in reversed(list(self._guests)):
                    await leave()
                self._nursery.cancel_scope.cancel()
                self.state = "closed"

    # -- for any thread

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process in which the thread runs."""
        return forks() != self._forks

    def check(self) -> None:
        """Raise unless a thread may call now.

        Raises:
            UsageError: it is not open yet, or this is a forked child, or a task of an event loop.
            ClosedError: it is closed.
        """
        self.check_thread()
        if self.state == "new":
            raise UsageError(f"{self.name} is not open: use it in 'with'")
        if self.state == "closed":
            raise ClosedError(f"{self.name} is closed")

    def check_thread(self) -> None:
        """Raise unless the calling thread is one that may wait here.

        Raises:
            UsageError: this is a forked child, or a task of an event loop.
        """
        if self.forked:
            raise UsageError(f"{self.name} belongs to the parent of this process: open one after the fork")
        self._refuse_tasks()

    def _refuse_tasks(self) -> None:
        if self._thread is not None and threading.get_ident() == self._thread.ident:
            raise UsageError(f"{self.name} was called from its own thread, which it would wait for")
        if trio.lowlevel.in_trio_run():
            raise UsageError("meshq.blocking was called from a trio task, whose loop it would stop: use meshq itself")

    def soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have the loop call a function, after what it was asked for before; it must not raise.

        Raises:
            ClosedError: the loop has ended.
        """
        token = self._token
        try:
            if token is None:
                raise trio.RunFinishedError
            token.run_sync_soon(function, *arguments)
        except trio.RunFinishedError:
            raise ClosedError(f"{self.name} is closed") from None

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any, **keywords: Any) -> T:
        """Call a coroutine function in the loop, and wait for what it returns or raises.

        An interrupt of this thread cancels it there.

        Raises:
            UsageError, ClosedError: see ``check``.
        """
        self.check()
        promise, scope = Promise(), trio.CancelScope()
        self.ask(promise, self._call, promise, scope, partial(function, *arguments, **keywords))
        result: T = self.wait(promise, scope.cancel)
        return result

    def ask(self, promise: Promise, task: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Have the loop start a task that keeps ``promise``.

        Raises:
            ClosedError: the loop has ended.
        """
        self._promises[promise] = None
        try:
            self.soon(self._start, promise, task, *arguments)
        except ClosedError:
            self._promises.pop(promise, None)
            raise

    def wait(self, promise: Promise, cancel: Callable[[], object]) -> Any:
        """Wait for a promise that the loop was asked for; an interrupt has the loop call ``cancel``."""

        def interrupted() -> None:
            # A loop that has ended has kept the promise, or will in a moment.
            with suppress(ClosedError):
                self.soon(cancel)

        return promise.wait(interrupted)

    # -- in the loop

    def keep(self, promise: Promise, result: outcome.Outcome[Any]) -> None:
        """What was asked for has ended, or has got as far as somebody waits for."""
        self._promises.pop(promise, None)
        promise.keep(result)

    def task(self, function: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Start a task that nobody waits for; an error of it is a defect, and ends the loop."""
        if self._nursery is not None and self.state == "open":
            self._nursery.start_soon(function, *arguments)

    def _start(self, promise: Promise, task: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        if self._nursery is None or self.state != "open":
            self.keep(promise, outcome.Error(ClosedError(f"{self.name} is closed")))
        else:
            self._nursery.start_soon(task, *arguments)

    async def _call(self, promise: Promise, scope: trio.CancelScope, function: Callable[[], Awaitable[Any]]) -> None:
        with scope:
            result = await outcome.acapture(function)
        self.keep(promise, result)

    def expect(self, promise: Promise) -> None:
        """Somebody may come to wait for this one: it is kept, if by nobody else, when the thread ends."""
        self._promises[promise] = None

    def add_guest(self, leave: Callable[[], Awaitable[None]]) -> None:
        """Something lives in the loop; ``leave`` ends it if it is still there when the loop ends."""
        self._guests[leave] = None

    def remove_guest(self, leave: Callable[[], Awaitable[None]]) -> None:
        """It has left."""
        self._guests.pop(leave, None)

    def at_end(self, farewell: Callable[[], None]) -> None:
        """Have this called by the thread when it ends, whatever ended it."""
        self._farewells[farewell] = None

    def not_at_end(self, farewell: Callable[[], None]) -> None:
        """Nobody waits for that any more."""
        self._farewells.pop(farewell, None)


def _nothing() -> None:
    """For a start that is interrupted: whoever started it stops it."""
