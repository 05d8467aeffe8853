"""Blocks outside the loop, each around an ``async with`` block in a task of the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, ClassVar, TypeVar

import outcome
import trio

from meshq.concurrency import new_block_life
from meshq.errors import ClosedError, UsageError
from meshq.portal._completion import PortalCompletion
from meshq.portal._loop_thread import LoopThread

T = TypeVar("T")


class BlockRunner(ABC):
    """A block outside the loop; derived classes say how its callers wait.

    ``within``: the block in which this one lives.  ``before_leaving`` runs in the loop when the body has ended, before
    the async block is left.
    """

    #: Errors by which a body is interrupted, and not ended.
    INTERRUPTS: ClassVar[tuple[type[BaseException], ...]] = (KeyboardInterrupt,)

    def __init__(
        self,
        loop: LoopThread,
        manager: AbstractAsyncContextManager[Any, bool | None],
        name: str,
        *,
        owner: bool = False,
        within: BlockRunner | None = None,
        before_leaving: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.loop: LoopThread = loop
        self._manager = manager
        self._name = name
        self._owner = owner
        self._within = within
        self._before_leaving = before_leaving
        self._life = new_block_life()
        self._entered: PortalCompletion
        self._left: PortalCompletion
        self._leave = trio.Event()
        self._gone = trio.Event()
        self._scope = trio.CancelScope()
        # The exception of the body.
        self._error: BaseException | None = None

    def check(self) -> None:
        """Raise unless the body runs and its loop may be called.

        Raises:
            UsageError: it was not entered yet; or see ``LoopThread.check``.
            ClosedError: its loop has ended, or it was closed.
        """
        if self._life.state == "closed":
            raise ClosedError(f"{self._name} is closed")
        if self._life.state == "new":
            raise self._not_open()
        self.loop.check()

    def _not_open(self) -> UsageError:
        return UsageError(f"{self._name} is not open: use it in {self.loop.WITH!r}")

    def run_sync(self, function: Callable[[], T]) -> T:
        """Call a plain function in the loop while the block may be used, and wait for the loop's next turn.

        Raises:
            UsageError, ClosedError: see ``check``.
        """
        self.check()
        return self.loop.run_sync(function)

    # -- by the caller of the block

    def begin(self) -> None:
        """Have the loop enter the block; ``entered`` completes when the block is entered or has failed.

        Raises:
            UsageError, ClosedError: see ``LoopThread.check``; or the block that this one lives in is not open.
        """
        if self._within is not None:
            self._within.check()
        self.loop.check()
        # The block may have been closed while the loop was starting.
        self._check_shut()
        self._life.on("claim")
        self._entered, self._left = self.loop.completion(), self.loop.completion()
        self.loop.start_task(self._entered, self._live)

    def claim(self) -> None:
        """Claim the block for one entry.

        Raises:
            UsageError: it was entered before.
            ClosedError: it was closed before.
        """
        self._check_shut()
        if self._life.state != "new":
            raise UsageError(f"{self._name} was used before; make another one")

    @property
    def was_left(self) -> bool:
        """Whether the body has ended, or the block could not be entered."""
        return self._life.state == "left"

    def _check_shut(self) -> None:
        if self._life.state == "closed":
            raise ClosedError(f"{self._name} was closed before it was open", outcome="not_done")

    def shut(self) -> bool:
        """Close the block if it was never entered, so that it can't be entered; return whether it was closed."""
        return self._life.on("close") == "closed"

    def _end_body(self) -> None:
        """Note that the body has ended.

        Raises:
            UsageError: no body runs.
        """
        if self._life.state != "open":
            raise self._not_open()
        self._life.on("leave")

    def depart(self, error: BaseException | None) -> None:
        """Have the loop leave the block, whose body has ended with ``error``; ``left`` completes when the block is
        left."""
        self._error = error
        # A loop that has ended has completed it before.
        with suppress(ClosedError):
            self.loop.call_soon(self._leave.set)

    def departed(self) -> None:
        """Forget the body's error; the block is left."""
        self._error = None

    # -- in the loop

    async def _live(self) -> None:
        loop, manager = self.loop, self._manager
        with self._scope:
            entered = await outcome.acapture(manager.__aenter__)
            if isinstance(entered, outcome.Error):
                self._gone.set()
                loop.complete(self._entered, entered)
                return
            loop.add_block(self._asked_to_leave)
            loop.expect(self._left)
            loop.complete(self._entered, outcome.Value(None))
            await self._body()
            left = await outcome.acapture(self._end)
            if isinstance(left, outcome.Error) and self._scope.cancel_called:
                # The interrupt goes on; the block is left all the same.
                left = outcome.Value(False)
            loop.remove_block(self._asked_to_leave)
            self._gone.set()
            loop.complete(self._left, left)

    async def _body(self) -> None:
        """Wait while the body runs outside the loop."""
        try:
            await self._leave.wait()
        except trio.Cancelled:
            self._failed()
        with trio.CancelScope(shield=True):
            await self._leave.wait()

    @abstractmethod
    def _failed(self) -> None:
        """Say outside that the thing behind the block has failed while the body runs."""

    async def _end(self) -> bool:
        error = self._error
        if isinstance(error, self.INTERRUPTS):
            # A body that is interrupted is left like one that is cancelled: without waiting for anybody.
            self._scope.cancel()
        try:
            if self._before_leaving is not None:
                await self._before_leaving()
        finally:
            kind, trace = (None, None) if error is None else (type(error), error.__traceback__)
            absorbed = await self._manager.__aexit__(kind, error, trace)
        return bool(absorbed)

    async def _asked_to_leave(self) -> None:
        """Leave the block because the loop ends, although its body still runs."""
        self._leave.set()
        with trio.CancelScope(shield=True):
            await self._gone.wait()
