"""The background thread of a client or broker: a trio loop, and calls into it from outside."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, ClassVar, Protocol, TypeVar

import outcome
import trio

from meshq.concurrency import first_error
from meshq.env import forks
from meshq.errors import ClosedError, MeshqError, UsageError
from meshq.lifecycle import LifeCycle
from meshq.portal._completion import PortalCompletion, ThreadCompletion
from meshq.portal._loop_life import LOOP_TRANSITIONS, NEW, RUNNING

T = TypeVar("T")


class Closes(Protocol):
    """An object that can be closed from any thread."""

    def close(self) -> None:
        """Close the object."""


class LoopThread(ABC):
    """A thread with a trio loop.  The thread starts and ends with the block of the object that owns it.

    Derived classes say how owner and callers wait: threads on a lock, tasks on a future.
    """

    #: How a block that owns a loop is entered, for errors.
    WITH: ClassVar = "with"

    def __init__(self, name: str, clock: trio.abc.Clock | None = None) -> None:
        #: The owner of the thread, for errors and for the thread's name.
        self.name = name
        self._clock = clock
        self._life = LifeCycle(name, LOOP_TRANSITIONS)
        # Any thread may ask for the end while the loop's own thread goes on.
        self._life_lock = threading.Lock()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._end: trio.Event | None = None
        self._thread: threading.Thread | None = None
        self._forks = forks()
        #: Completed by the thread as its last step; set by `launch`.
        self.gone: PortalCompletion
        # Completions with waiters outside; a loop that dies fails them.
        self._completions: dict[PortalCompletion, None] = {}
        # The blocks in the loop, in order of entry; and the callbacks of the thread's end.
        self._blocks: dict[Callable[[], Awaitable[None]], None] = {}
        self._end_callbacks: dict[Callable[[], None], None] = {}

    # -- life, by its owner

    @abstractmethod
    def completion(self) -> PortalCompletion:
        """A new completion, of the kind that callers of this loop wait for."""

    def launch(self) -> PortalCompletion:
        """Start the thread; the returned completion completes when the loop runs.

        Raises:
            UsageError: it was started before, or a task of a trio loop is calling.
        """
        self._refuse_tasks()
        if self.started:
            raise UsageError(f"{self.name} was used before; make another one")
        self._change("launch")
        self._forks = forks()
        started, self.gone = self.completion(), self.completion()
        self._completions[started] = None
        self._thread = threading.Thread(target=self._run, args=(started,), name=f"meshq: {self.name}", daemon=True)
        self._thread.start()
        return started

    def end(self) -> None:
        """Have the thread end.  Twice is silent, and so is a forked child, which has none."""
        if self.forked:
            return
        self._change("end")
        token, end = self._token, self._end
        if token is not None and end is not None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(end.set)

    def join(self) -> None:
        """Wait until the thread is gone, if there is one in this process."""
        if self._thread is not None and not self.forked:
            self._thread.join()

    def _run(self, started: PortalCompletion) -> None:
        ended: MeshqError = ClosedError(f"{self.name} is closed", outcome="unknown")
        try:
            trio.run(self._main, started, clock=self._clock)
        except BaseException as error:
            ended.__cause__ = first_error(error)
            raise
        finally:
            self._change("halt")
            for completion in list(self._completions):
                completion.complete(outcome.Error(ended))
            for callback in list(self._end_callbacks):
                callback()
            self.gone.complete(outcome.Value(None))

    async def _main(self, started: PortalCompletion) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._end = trio.Event()
        if self._life.state == "ending":
            self._end.set()
        async with trio.open_nursery() as self._nursery:
            self.complete(started, outcome.Value(None))
            try:
                await self._end.wait()
            finally:
                # Reached at the end and after a defect in the loop.
                for leave in reversed(list(self._blocks)):
                    await leave()
                self._nursery.cancel_scope.cancel()
                self._change("halt")

    def _change(self, event: str) -> None:
        with self._life_lock:
            self._life.on(event)

    # -- for anybody outside

    @property
    def started(self) -> bool:
        """Whether the thread was started, ended or not."""
        return self._life.state not in NEW

    @property
    def running(self) -> bool:
        """Whether the thread was started, and its loop has not ended."""
        return self._life.state in RUNNING

    @property
    def closed(self) -> bool:
        """Whether the loop has ended."""
        return self._life.state == "closed"

    @property
    def token(self) -> trio.lowlevel.TrioToken:
        """The loop, as trio names it.

        Raises:
            ClosedError: it does not run yet.
        """
        if self._token is None:
            raise ClosedError(f"{self.name} is not open")
        return self._token

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
        if not self.started:
            raise UsageError(f"{self.name} is not open: use it in {self.WITH!r}")
        if self.closed:
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
        if threading.current_thread() is self._thread:
            raise UsageError(f"{self.name} was called from its own thread, which it would wait for")
        if trio.lowlevel.in_trio_run():
            raise UsageError(f"{self.name} was called from a trio task, whose loop it would stop: use meshq itself")

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have the loop call a function, after earlier requests; the function must not raise.

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

    def run_sync(self, function: Callable[[], T]) -> T:
        """Call a plain function in the loop, and wait for the loop's next turn.

        Raises:
            UsageError, ClosedError: see ``check``.
        """
        self.check()
        completion = ThreadCompletion()
        self._completions[completion] = None
        try:
            self.call_soon(self._run_sync, completion, function)
        except ClosedError:
            self._completions.pop(completion, None)
            raise
        result: T = completion.wait(_nothing)
        return result

    def run_sync_if_open(self, function: Callable[[], T]) -> T:
        """Call a plain function in the loop, or in the calling thread if the loop does not run.

        The state of the thing that is looked at, and not whether a body runs yet, says where it may be touched: it
        is seen from outside before whoever has entered its block goes on.

        Raises:
            UsageError: see ``check``.
        """
        if self.running and self._token is not None:
            with suppress(ClosedError):
                return self.run_sync(function)
        return function()

    def start_task(self, completion: PortalCompletion, task: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Have the loop start a task that completes ``completion``.

        Raises:
            ClosedError: the loop has ended.
        """
        self._completions[completion] = None
        try:
            self.call_soon(self._start, completion, task, *arguments)
        except ClosedError:
            self._completions.pop(completion, None)
            raise

    # -- in the loop

    def complete(self, completion: PortalCompletion, result: outcome.Outcome[Any]) -> None:
        """Complete a completion of this loop."""
        self._completions.pop(completion, None)
        completion.complete(result)

    def task(self, function: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Start a task without a waiter; an error of the task is a defect and ends the loop."""
        if self._nursery is not None and self.running:
            self._nursery.start_soon(function, *arguments)

    def _start(self, completion: PortalCompletion, task: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        if self._nursery is None or not self.running:
            self.complete(completion, outcome.Error(ClosedError(f"{self.name} is closed")))
        else:
            self._nursery.start_soon(task, *arguments)

    async def run_call(
        self, completion: PortalCompletion, scope: trio.CancelScope, function: Callable[[], Awaitable[Any]]
    ) -> None:
        """Complete ``completion`` with the result of ``function``, which ``scope`` cancels."""
        with scope:
            result = await outcome.acapture(function)
        self.complete(completion, result)

    def _run_sync(self, completion: PortalCompletion, function: Callable[[], Any]) -> None:
        self.complete(completion, outcome.capture(function))

    def expect(self, completion: PortalCompletion) -> None:
        """Register a completion, which fails when the thread ends before it is completed."""
        self._completions[completion] = None

    def add_block(self, leave: Callable[[], Awaitable[None]]) -> None:
        """Add a block that lives in the loop; ``leave`` ends the block if the loop ends first."""
        self._blocks[leave] = None

    def remove_block(self, leave: Callable[[], Awaitable[None]]) -> None:
        """Remove a block that is left."""
        self._blocks.pop(leave, None)

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the thread ends, for any reason."""
        self._end_callbacks[callback] = None

    def close_at_end(self, thing: Closes) -> None:
        """Close an object when the thread ends, unless the program has dropped the object."""
        found = weakref.ref(thing, lambda _: self.cancel_at_end(callback))

        def callback() -> None:
            left = found()
            if left is not None:
                left.close()

        self.at_end(callback)

    def cancel_at_end(self, callback: Callable[[], None]) -> None:
        """Cancel a callback of ``at_end``."""
        self._end_callbacks.pop(callback, None)


def _nothing() -> None:
    """The cancel function of ``run_sync``: does nothing, because the call takes one turn only."""
