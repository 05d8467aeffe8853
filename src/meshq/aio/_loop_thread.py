"""The loop behind a client or broker for asyncio, as tasks start it, call it and wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial, wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar, cast

import trio

from meshq import portal
from meshq.errors import ClosedError, NotActiveError

P = ParamSpec("P")
T = TypeVar("T")


class TaskCall(Protocol):
    """A call into the loop, as ``TaskLoop.call``."""

    async def __call__(self, function: Callable[..., Awaitable[T]], /, *arguments: Any, **keywords: Any) -> T:
        """Call a coroutine function in the loop, and wait for its result."""


class TaskCompletion(portal.PortalCompletion):
    """A completion for which a task of asyncio waits."""

    __slots__ = ("_future", "_here")

    def __init__(self) -> None:
        super().__init__()
        self._here = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None

    def _wake_waiter(self) -> None:
        # A closed loop has no waiting task.
        with suppress(RuntimeError):
            self._here.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, cancel: Callable[[], None]) -> Any:
        """Wait for the operation; return the value or raise the error.

        A cancellation cancels the operation and goes on once that has ended, however often it comes.
        """
        cancelled: asyncio.CancelledError | None = None
        while not self.done:
            self._future = self._here.create_future()
            try:
                await self._future
            except BaseException as error:
                if cancelled is None:
                    cancel()
                if not isinstance(error, asyncio.CancelledError):
                    # The task is being destroyed and no longer waits.
                    raise
                cancelled = cancelled or error
        if cancelled is None:
            return self.result()
        try:
            self.result()
        finally:
            # An error of the call goes along as its context.
            raise cancelled


class TaskLoop(portal.LoopThread):
    """A loop for tasks of asyncio."""

    WITH: ClassVar = "async with"

    def __init__(self, name: str, clock: trio.abc.Clock | None = None) -> None:
        super().__init__(name, clock)
        # Tasks whose bodies were cancelled for a failure, and by how many blocks that are not left yet.
        self._cuts: dict[asyncio.Task[Any], int] = {}
        # Tasks that leave a block just now, and what is to be done when they have.
        self._leaving: dict[asyncio.Task[Any], list[Callable[[], None]]] = {}

    def leaving(self, task: asyncio.Task[Any]) -> None:
        """Note that a task begins to leave a block; outer blocks that fail meanwhile wait for the end of that."""
        self._leaving[task] = []

    def left(self, task: asyncio.Task[Any]) -> None:
        """Note that the task has left the block."""
        for function in self._leaving.pop(task, ()):
            asyncio.get_running_loop().call_soon(function)

    def after_leaving(self, task: asyncio.Task[Any], function: Callable[[], None]) -> bool:
        """Have ``function`` called when the task has left a block; False if it is leaving none."""
        if task in self._leaving:
            self._leaving[task].append(function)
            return True
        return False

    def cut(self, task: asyncio.Task[Any]) -> None:
        """Cancel the body of a block."""
        self._cuts[task] = self._cuts.get(task, 0) + 1
        task.cancel()

    def uncut(self, task: asyncio.Task[Any]) -> None:
        """Take back the cancellation of a body whose block is left."""
        task.uncancel()
        self._cuts[task] -= 1
        if not self._cuts[task]:
            del self._cuts[task]

    def cuts(self, task: asyncio.Task[Any]) -> int:
        """The number of requests to cancel this task that come from blocks."""
        return self._cuts.get(task, 0)

    def completion(self) -> TaskCompletion:
        """A completion that a task of the running loop waits for."""
        return TaskCompletion()

    async def start(self) -> None:
        """Start the thread.

        Raises:
            UsageError: it was started before, or a task of a trio loop is calling.
        """
        started = cast("TaskCompletion", self.launch())
        try:
            await started.wait(_nothing)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the thread; returns when it is gone, cancelled or not.  Twice is silent."""
        self.end()
        if self.started and not self.forked:
            try:
                await cast("TaskCompletion", self.gone).wait(_nothing)
            finally:
                if self.gone.done:
                    self.join()

    async def call(self, function: Callable[..., Awaitable[T]], *arguments: Any, **keywords: Any) -> T:
        """Call a coroutine function in the loop, and wait for its result.

        A cancellation of this task cancels the call there, and goes on here when the call has ended.

        Raises:
            UsageError, ClosedError: see ``check``.
        """
        self.check()
        completion, scope = self.completion(), trio.CancelScope()
        self.start_task(completion, self.run_call, completion, scope, partial(function, *arguments, **keywords))
        result: T = await self.wait(completion, scope.cancel)
        return result

    async def call_active(self, function: Callable[..., Awaitable[T]], *arguments: Any, **keywords: Any) -> T:
        """Call a coroutine function of a part of a broker in the loop, as ``call`` does.

        Raises:
            NotActiveError: the loop has ended, and the broker with it; an error of the function is raised as it is.
        """
        try:
            found = await self.call(portal.own_outcome, function, *arguments, **keywords)
        except ClosedError as error:
            raise NotActiveError(f"the broker is not active: {error}") from None
        result: T = found.unwrap()
        return result

    async def wait(self, completion: portal.PortalCompletion, cancel: Callable[[], object]) -> Any:
        """Wait for a completion that the loop was asked for; a cancellation has the loop call ``cancel``."""

        def cancelled() -> None:
            # A loop that has ended has completed it, or will in a moment.
            with suppress(ClosedError):
                self.call_soon(cancel)

        return await cast("TaskCompletion", completion).wait(cancelled)


def _nothing() -> None:
    """The cancel function of a start or a stop: does nothing, because both go on."""


def forwarded(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Make a method that calls ``method`` of the trio object in its loop, with its signature and documentation."""
    name = method.__name__

    @wraps(method)
    async def call(self: Any, /, *arguments: P.args, **keywords: P.kwargs) -> T:
        # By name: the trio object may be of a class of its own.
        result: T = await self._call(getattr(self._inner, name), *arguments, **keywords)
        return result

    return call
