"""What somebody outside waits for: kept once by the loop, told where it is waited for."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import outcome
import trio

from meshq.errors import ClosedError


def flat(error: BaseException) -> BaseException:
    """The first error inside groups of groups; a cancellation only if there is nothing else."""
    while isinstance(error, BaseExceptionGroup):
        others = error.split(trio.Cancelled)[1]
        error = (error if others is None else others).exceptions[0]
    return error


class PortalCompletion(ABC):
    """Kept once by the loop's thread."""

    __slots__ = ("_error", "_value", "done")

    def __init__(self) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        #: Whether it is decided.
        self.done = False

    @property
    def succeeded(self) -> bool:
        """Whether it is decided, and not by an error."""
        return self.done and self._error is None

    def complete(self, result: outcome.Outcome[Any]) -> None:
        """It is decided; what comes later is ignored."""
        if self.done:
            return
        if isinstance(result, outcome.Error):
            self._error = flat(result.error)
        else:
            self._value = result.unwrap()
        self.done = True
        self._wake_waiter()

    @abstractmethod
    def _wake_waiter(self) -> None:
        """Wake whoever waits for it."""

    def result(self) -> Any:
        """The value, or the error raised; it must be decided."""
        if self._error is None:
            return self._value
        if isinstance(self._error, trio.Cancelled):
            raise ClosedError("the loop behind the call has ended", outcome="unknown")
        raise self._error


class ThreadCompletion(PortalCompletion):
    """One that a thread waits for."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._lock.acquire()

    def _wake_waiter(self) -> None:
        self._lock.release()

    def wait(self, cancel: Callable[[], None]) -> Any:
        """The value, or the error raised, in the calling thread.

        An interrupt cancels what is waited for and goes on once that has ended; a second one goes on at once.
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
