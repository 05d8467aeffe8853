"""The loop behind a blocking client or broker, as threads start it, call it and wait for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import trio

from meshq import portal
from meshq.errors import ClosedError, NotActiveError
from meshq.portal import PortalCompletion, ThreadCompletion

T = TypeVar("T")


class ThreadCall(Protocol):
    """A call into the loop, as ``ThreadLoop.call``."""

    def __call__(self, function: Callable[..., Awaitable[T]], /, *arguments: Any, **keywords: Any) -> T:
        """Call a coroutine function in the loop, and wait for its result."""


class ThreadLoop(portal.LoopThread):
    """A loop for threads."""

    def completion(self) -> ThreadCompletion:
        """A completion that a thread waits for."""
        return ThreadCompletion()

    def start(self) -> None:
        """Start the thread.

        Raises:
            UsageError: it was started before, or a task of an event loop is calling.
        """
        started = cast("ThreadCompletion", self.launch())
        try:
            started.wait(_nothing)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the thread; returns when it is gone.  Twice is silent, and so is a forked child, which has none."""
        self.end()
        self.join()

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any, **keywords: Any) -> T:
        """Call a coroutine function in the loop, and wait for its result.

        An interrupt of this thread cancels it there.

        Raises:
            UsageError, ClosedError: see ``check``.
        """
        self.check()
        completion, scope = self.completion(), trio.CancelScope()
        self.start_task(completion, self.run_call, completion, scope, partial(function, *arguments, **keywords))
        result: T = self.wait(completion, scope.cancel)
        return result

    def call_active(self, function: Callable[..., Awaitable[T]], *arguments: Any, **keywords: Any) -> T:
        """Call a coroutine function of a part of a broker in the loop, as ``call`` does.

        Raises:
            NotActiveError: the loop has ended, and the broker with it; an error of the function is raised as it is.
        """
        try:
            found = self.call(portal.own_outcome, function, *arguments, **keywords)
        except ClosedError as error:
            raise NotActiveError(f"the broker is not active: {error}") from None
        result: T = found.unwrap()
        return result

    def wait(self, completion: PortalCompletion, cancel: Callable[[], object]) -> Any:
        """Wait for a completion that the loop was asked for; an interrupt has the loop call ``cancel``."""

        def interrupted() -> None:
            # A loop that has ended has completed it, or will in a moment.
            with suppress(ClosedError):
                self.call_soon(cancel)

        return cast("ThreadCompletion", completion).wait(interrupted)


def _nothing() -> None:
    """The cancel function of a start: does nothing, because the caller stops the loop."""
