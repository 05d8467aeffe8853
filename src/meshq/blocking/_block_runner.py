"""A ``with`` block of one thread, over an ``async with`` block in the loop."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from meshq import portal
from meshq.blocking._loop_thread import ThreadLoop

T = TypeVar("T")


class ThreadBlockRunner(portal.BlockRunner):
    """A block of a thread."""

    loop: ThreadLoop

    def __init__(
        self,
        loop: ThreadLoop,
        manager: AbstractAsyncContextManager[Any, bool | None],
        name: str,
        *,
        owner: bool = False,
        within: portal.BlockRunner | None = None,
        before_leaving: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(loop, manager, name, owner=owner, within=within, before_leaving=before_leaving)
        #: Set when the body has nothing more to wait for: the thing behind the block has failed, or was told to end.
        self.over: threading.Event = threading.Event()

    def _failed(self) -> None:
        self.over.set()

    def enter(self) -> None:
        """Enter the block.

        Raises: whatever the async block raises; and
            UsageError: it was entered before.
        """
        self.claim()
        if self._owner:
            self.loop.start()
        try:
            self.begin()
            try:
                self.loop.wait(self._entered, self._scope.cancel)
            except BaseException as error:
                self._life.on("abandon")
                if self._entered.succeeded:
                    # Interrupted, and yet it was entered.
                    self._depart(error)
                raise
            self._life.on("enter")
        except BaseException:
            self._stop()
            raise

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any, **keywords: Any) -> T:
        """Call a coroutine function in the loop while the block may be used, and wait for its result.

        Raises:
            UsageError, ClosedError: see ``check``.
        """
        self.check()
        return self.loop.call(function, *arguments, **keywords)

    def leave(self, error: BaseException | None) -> bool:
        """Leave the block, whose body has ended with ``error``; the result is that of ``__exit__``."""
        self._end_body()
        if self.loop.forked:
            # A forked child can't use the loop of its parent.
            self.loop.check()
        try:
            return self._depart(error)
        finally:
            self._stop()

    def _depart(self, error: BaseException | None) -> bool:
        self.depart(error)
        try:
            return bool(self.loop.wait(self._left, self._scope.cancel))
        finally:
            self.departed()

    def _stop(self) -> None:
        if self._owner:
            self.loop.stop()
