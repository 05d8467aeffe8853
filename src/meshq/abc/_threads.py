"""Worker threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Threads(ABC):
    """Worker threads, for calls that release the interpreter lock."""

    @abstractmethod
    async def run(self, function: Callable[..., T], *arguments: Any, pool: str = "default") -> T:
        """Call ``function`` in a worker thread of the named pool (one thread for ``"journal"``).

        Checkpoint: always.
        Cancellation: the call is waited for; its effects stand and its result is lost.  In a pool whose
        name begins with ``"discovery"``, for a directory that may be another host's, the call may be left to its
        thread.
        """

    @abstractmethod
    def idle(self) -> bool:
        """Whether no other task of this loop can run now, so that a short blocking call in the loop delays no task."""
