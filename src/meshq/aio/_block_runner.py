"""An ``async with`` block of an asyncio task, over an ``async with`` block in the trio loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, ClassVar, TypeVar

from meshq import portal
from meshq.aio._loop_thread import TaskLoop
from meshq.errors import ClosedError

T = TypeVar("T")


class TaskBlockRunner(portal.BlockRunner):
    """A block of a task.  When the thing behind it fails, the task is cancelled, and the block raises why."""

    INTERRUPTS: ClassVar[tuple[type[BaseException], ...]] = (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit)
    loop: TaskLoop

    def __init__(
        self,
        loop: TaskLoop,
        manager: AbstractAsyncContextManager[Any, bool | None],
        name: str,
        *,
        owner: bool = False,
        within: portal.BlockRunner | None = None,
        before_leaving: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(loop, manager, name, owner=owner, within=within, before_leaving=before_leaving)
        self._here: asyncio.AbstractEventLoop
        self._task: asyncio.Task[Any]
        # The requests to cancel the task that were pending when the block was entered.
        self._cancelling = 0
        # The thing has failed; and the body was cancelled for that.
        self._has_failed = False
        self._cut = False

    async def enter(self) -> None:
        """Enter the block.

        Raises: whatever the trio block raises; and
            UsageError: it was entered before.
        """
        self.claim()
        self.loop.check_thread()
        self._here = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        if self._owner:
            await self.loop.start()
        try:
            self.begin()
            try:
                await self.loop.wait(self._entered, self._scope.cancel)
            except BaseException as error:
                self._life.on("abandon")
                if self._entered.succeeded:
                    # Cancelled, and yet it was entered.
                    await self._depart(error)
                raise
            self._life.on("enter")
            if self._has_failed:
                # It failed before this task came to run: the body learns it where it first waits.
                self._here.call_soon(self._cut_body)
        except BaseException:
            await self._stop()
            raise

    async def call(self, function: Callable[..., Awaitable[T]], *arguments: Any, **keywords: Any) -> T:
        """Call a coroutine function in the loop while the block may be used, and wait for its result.

        Raises:
            UsageError, ClosedError: see ``check``.
        """
        self.check()
        return await self.loop.call(function, *arguments, **keywords)

    async def leave(self, error: BaseException | None, unraised: BaseException | None = None) -> bool:
        """Leave the block, whose body has ended with ``error``; the result is that of ``__aexit__``.

        ``unraised``: what the body would have raised if it had not been cancelled just then.
        """
        self._end_body()
        if self.loop.forked:
            # A forked child can't use the loop of its parent.
            self.loop.check()
        if isinstance(error, GeneratorExit):
            self._abandon(error)
            return False
        ours = isinstance(error, asyncio.CancelledError) and self._ours()
        if self._cut:
            self.loop.uncut(self._task)
        self.loop.leaving(self._task)
        try:
            if error is not None and not ours:
                return await self._depart(error)
            # Without an error the block raises why it has failed; where it is one around it that has, it is left in
            # peace, and the cancellation goes on to that one.
            absorbed = await self._depart(unraised)
            if unraised is not None and not absorbed:
                raise unraised
            return False
        finally:
            self.loop.left(self._task)
            await self._stop()

    def _ours(self) -> bool:
        """Whether only this block, or another block of the same client, has cancelled the body."""
        cuts = self.loop.cuts(self._task)
        return cuts > 0 and self._task.cancelling() - cuts <= self._cancelling

    def _abandon(self, error: GeneratorExit) -> None:
        """Have the loop leave the block without waiting, because the task is being destroyed."""
        self.depart(error)
        with suppress(ClosedError):
            self.loop.call_soon(self._scope.cancel)
        if self._owner:
            self.loop.end()

    async def _depart(self, error: BaseException | None) -> bool:
        self.depart(error)
        try:
            return bool(await self.loop.wait(self._left, self._scope.cancel))
        finally:
            self.departed()

    async def _stop(self) -> None:
        if self._owner:
            await self.loop.stop()

    def _cut_body(self) -> None:
        self._has_failed = True
        if self._life.state == "open" and not self._cut and not self.loop.after_leaving(self._task, self._cut_body):
            self._cut = True
            self.loop.cut(self._task)

    # -- in the trio loop

    def _failed(self) -> None:
        # A loop that is closed has no body that runs.
        with suppress(RuntimeError):
            self._here.call_soon_threadsafe(self._cut_body)
