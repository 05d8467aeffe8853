"""Background tasks of ``async with`` blocks, by the rules of ``_block.py``."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from meshq.concurrency._block import Block
from meshq.concurrency._errors import first_error


class BackgroundBlock:
    """A task in the background of a block: starts before the body and ends after it, even if the body is cancelled.

    If it fails, the body is cancelled, and its one error leaves the block, as it was raised and in no group.
    """

    def __init__(self, name: str) -> None:
        self._block = Block(name)
        self._manager: Any = None
        self._scope = trio.CancelScope()
        # Why it ended, if it was not told to.
        self._failure: BaseException | None = None

    async def open(self, run: Callable[..., Awaitable[None]]) -> None:
        """Begin: returns when ``run`` has reported that it has started.

        Checkpoint: always.
        Cancellation: what had started is ended.
        Raises: whatever ``run`` raises before it has started.
        """
        self._block.claim()
        self._manager = trio.open_nursery()
        nursery = await self._manager.__aenter__()
        try:
            await nursery.start(self._guard, run)
        except BaseException as error:
            self._block.abandon()
            self._scope.cancel()
            nursery.cancel_scope.cancel()
            await self._manager.__aexit__(None, None, None)
            first = first_error(error)
            if first is error:
                raise
            raise first from first.__cause__
        self._block.enter()

    async def _guard(self, run: Callable[..., Awaitable[None]], *, task_status: trio.TaskStatus[None]) -> None:
        started = False
        scope = self._scope

        class StartStatus:
            def started(self, value: None = None) -> None:
                nonlocal started
                started = True
                # From here on only `close` ends it: a cancelled body still gets a clean stop.  Whoever enters has its
                # turn only later: a cancellation in between would end this, and nobody would hear of it.  One that came
                # before ends it now, and is waited for.
                scope.shield = trio.current_effective_deadline() > -math.inf
                task_status.started(value)

        with scope:
            try:
                await run(task_status=StartStatus())
            except (Exception, BaseExceptionGroup) as error:
                first = first_error(error)
                if not started or isinstance(first, trio.Cancelled):
                    raise
                self._failure = first
                self._block.fail(first)

    async def close(self, error: BaseException | None, stop: Callable[[], Awaitable[None]]) -> bool:
        """End the background task, because the body has ended with ``error``; the result is that of ``__aexit__``.

        Checkpoint: always.
        Cancellation: waits for ``stop`` all the same.
        Raises: what the block has to raise.
        """
        left = self._block.leave(error)
        unstopped: Exception | None = None
        with trio.CancelScope(shield=True):
            if self._block.failure is None:
                try:
                    await stop()
                except Exception as failure:
                    # The task ends all the same: nothing of it outlives the block.
                    unstopped = failure
                    self._scope.cancel()
        await self._manager.__aexit__(None, None, None)
        if self._block.failure is None:
            # It may have failed behind the body, while it was stopped.
            self._block.failure = self._failure or unstopped
        return self._block.conclude(error, left)
