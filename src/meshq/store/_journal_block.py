"""The block of a journal that is used by itself: ``async with Journal(directory) as journal``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from meshq.concurrency import Block, first_error
from meshq.errors import JournalBrokenError
from meshq.store._open_journal import OpenJournal
from meshq.store.commit._journal_life import JournalLife


class JournalBlock:
    """The nursery in which a journal runs for the length of a block, by the rule of ``concurrency/_block.py``."""

    __slots__ = ("_block", "_life", "_manager", "_parts")

    def __init__(self, parts: OpenJournal, life: JournalLife) -> None:
        self._parts = parts
        self._life = life
        self._block = Block("the journal")
        self._manager: Any = trio.open_nursery()

    async def enter(self) -> None:
        """Start the journal's tasks.

        Checkpoint: never.
        Cancellation: not here.
        """
        self._block.claim()
        nursery = await self._manager.__aenter__()
        nursery.start_soon(self._run_in_block)
        self._block.enter()

    async def _run_in_block(self) -> None:
        try:
            await self._parts.run(trio.TASK_STATUS_IGNORED)
        except JournalBrokenError as error:
            self._block.fail(error)

    async def leave(self, error: BaseException | None, close: Callable[[], Awaitable[None]]) -> bool:
        """End the body, which raised ``error``, and ``close`` the journal; the result is that of ``__aexit__``.

        Checkpoint: always.
        Cancellation: the journal is closed nevertheless.
        Raises:
            JournalBrokenError: the disk failed.
        """
        left = self._block.leave(error)

        async def end() -> None:
            await close()
            if self._block.failure is None and self._life.failure is not None:
                # The disk failed behind the body, or while the journal was closed.
                self._block.failure = self._life.broken()
            try:
                await self._manager.__aexit__(None, None, None)
            except BaseExceptionGroup as group:
                raise (first := first_error(group)) from first.__cause__

        await self._block.close_after(left, end)
        return self._block.conclude(error, left)
