"""Completions: results of operations in the loop, for waiters outside."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import outcome
import trio

from meshq.concurrency import first_error
from meshq.errors import ClosedError


class PortalCompletion(ABC):
    """The result of an operation in the loop, for a waiter outside."""

    __slots__ = ("_error", "_value", "done")

    def __init__(self) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        #: Whether the operation has completed or failed.
        self.done: bool = False

    @property
    def succeeded(self) -> bool:
        """Whether the operation has completed without an error."""
        return self.done and self._error is None

    def complete(self, result: outcome.Outcome[Any]) -> None:
        """Complete with a value or an error; later results are ignored."""
        if self.done:
            return
        if isinstance(result, outcome.Error):
            self._error = first_error(result.error)
        else:
            self._value = result.unwrap()
        self.done = True
        self._wake_waiter()

    @abstractmethod
    def _wake_waiter(self) -> None:
        """Wake the waiter."""

    def result(self) -> Any:
        """Return the value of the completed operation, or raise its error."""
        if self._error is None:
            return self._value
        if isinstance(self._error, trio.Cancelled):
            raise ClosedError("the loop behind the call has ended", outcome="unknown")
        raise self._error


class ThreadCompletion(PortalCompletion):
    """A completion for which a thread waits."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._lock.acquire()

    def _wake_waiter(self) -> None:
        self._lock.release()

    def wait(self, cancel: Callable[[], None]) -> Any:
        """Wait in the calling thread; return the value or raise the error.

        An interrupt cancels the operation and goes on once that has ended; a second interrupt goes on at once.
        """
        try:
            self._decided()
        except BaseException:
            cancel()
            self._decided()
            raise
        return self.result()

    def _decided(self) -> None:
        # The lock may have been got by a wait that was interrupted in the next moment.
        while not self.done:
            self._lock.acquire()
