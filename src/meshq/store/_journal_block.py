"""The block of a journal that is used by itself: ``async with Journal(directory) as journal``."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import trio

from meshq.errors import JournalBrokenError
from meshq.store._open_journal import OpenJournal, only_error
from meshq.store.commit._journal_life import JournalLife


class JournalBlock:
    """The nursery in which a journal runs for the length of a block."""

    __slots__ = ("_life", "_manager", "_parts", "_scope")

    def __init__(self, parts: OpenJournal, life: JournalLife) -> None:
        self._parts = parts
        self._life = life
        self._manager: Any = trio.open_nursery()
        #: Cancelled when the disk has failed: it ends the body of the block.
        self._scope: trio.CancelScope | None = None

    async def enter(self) -> None:
        """Start the journal's tasks.

        Checkpoint: never.
        Cancellation: not here.
        """
        nursery = await self._manager.__aenter__()
        self._scope = nursery.cancel_scope
        nursery.start_soon(self._run_in_block)

    async def _run_in_block(self) -> None:
        try:
            await self._parts.run(trio.TASK_STATUS_IGNORED)
        except JournalBrokenError:
            if self._scope is not None:
                self._scope.cancel()

    async def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Leave the block of a journal that is closed.

        Checkpoint: always.
        Cancellation: not here: the tasks have ended.
        Raises:
            JournalBrokenError: the disk failed.
        """
        swallowed = False
        try:
            swallowed = bool(await self._manager.__aexit__(kind, error, trace))
        except BaseExceptionGroup as group:
            if error is None or only_error(group) is not error:
                raise (only := only_error(group)) from only.__cause__
        except trio.Cancelled:
            if error is None:
                raise
        if self._life.failure is not None:
            raise self._life.broken()
        return swallowed
