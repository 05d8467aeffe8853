"""The ``async with`` block of a quorum session, and the tasks of the session in the background of the block."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractAsyncContextManager
from types import TracebackType

import trio
from trio import TaskStatus

from meshq.abc import QuorumSession
from meshq.concurrency import BackgroundBlock


class RunningSession(QuorumSession):
    """A quorum session with tasks of its own, which run until ``end``."""

    @abstractmethod
    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the tasks, until ``end``."""

    @abstractmethod
    async def end(self) -> None:
        """Give the lock back, and end ``run``; bounded in time."""


class SessionBlock(AbstractAsyncContextManager[QuorumSession]):
    """The block of a quorum session.  An error of the body leaves the block as it was raised."""

    def __init__(self, session: RunningSession) -> None:
        self._session = session
        self._block = BackgroundBlock("the session at the quorum")

    async def __aenter__(self) -> QuorumSession:
        await self._block.open(self._session.run)
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return await self._block.close(error, self._session.end)
