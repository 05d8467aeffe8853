"""A session of any provider that raises the errors of the contract only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from meshq.abc import QuorumRecord, QuorumSession
from meshq.errors import ConnectionBrokenError, MeshqError


@contextmanager
def typed_errors() -> Iterator[None]:
    """Let any error that is none of meshq leave the block as one of a quorum that can't be asked."""
    try:
        yield
    except MeshqError:
        raise
    except Exception as error:
        text = f"the quorum provider has failed: {type(error).__name__}: {error}"
        raise ConnectionBrokenError(text, outcome="unknown") from error


class SafeSession(QuorumSession):
    """A session that raises errors of meshq only."""

    def __init__(self, session: QuorumSession) -> None:
        self._session = session

    @property
    def held_until(self) -> float:
        """The moment until which the lock is surely held; 0.0 where the provider can't say."""
        with suppress(MeshqError), typed_errors():
            return self._session.held_until
        return 0.0

    async def read(self) -> QuorumRecord:
        """Return the record."""
        with typed_errors():
            return await self._session.read()

    async def acquire(self) -> bool:
        """Try to get the lock."""
        with typed_errors():
            return await self._session.acquire()

    async def compare_and_set(self, expected: QuorumRecord, new: QuorumRecord) -> bool:
        """Store a record in the place of another one."""
        with typed_errors():
            return await self._session.compare_and_set(expected, new)

    async def release(self) -> None:
        """Give the lock back."""
        with typed_errors():
            await self._session.release()

    async def lost(self) -> None:
        """Wait until the lock is not held."""
        with typed_errors():
            await self._session.lost()
