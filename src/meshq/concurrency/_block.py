"""The rule of every ``async with`` block.

- What the body raises leaves the block as it was, never inside an ``ExceptionGroup``.
- When the thing behind the block fails for good, the body is cancelled and the block raises that one error; an
  error of the body's own goes along as its ``__context__``.
- ``KeyboardInterrupt`` and the like go before both; a cancellation from outside goes on unless the thing has failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from meshq.concurrency._block_life import new_block_life
from meshq.concurrency._errors import copied_error
from meshq.errors import ClosedError, UsageError


class Block:
    """The life of one ``async with`` block."""

    __slots__ = ("_life", "_scope", "failure", "name")

    def __init__(self, name: str) -> None:
        #: How errors call the thing.
        self.name: str = name
        self._life = new_block_life()
        self._scope = trio.CancelScope()
        #: Why the thing is of no further use; None while it is.
        self.failure: BaseException | None = None

    @property
    def open(self) -> bool:
        """Whether the body runs, or is about to."""
        return self._life.state in ("entering", "open")

    def check_unused(self) -> None:
        """Check that the block can be entered.

        Raises:
            UsageError: it was entered before.
            ClosedError: it was closed before.
        """
        if self._life.state == "closed":
            raise ClosedError(f"{self.name} was closed before it was open", outcome="not_done")
        if self._life.state != "new":
            raise UsageError(f"{self.name} was used before; make another one")

    def claim(self) -> None:
        """Claim the block for one ``async with``.

        Raises:
            UsageError, ClosedError: see ``check_unused``.
        """
        self.check_unused()
        self._life.on("claim")

    def enter(self) -> None:
        """Begin the body, in this task."""
        self._life.on("enter")
        self._scope.__enter__()

    def abandon(self) -> None:
        """Give up the block, which could not be entered."""
        self._life.on("abandon")

    def close(self) -> None:
        """Note that the program closes the object: a block that was not entered can't be entered any more."""
        self._life.on("close")

    def fail(self, error: BaseException) -> None:
        """Cancel the body, because the object behind the block has failed for good; the first error counts."""
        if self.failure is None and self._life.state != "left":
            self.failure = error
            self._scope.cancel()

    def leave(self, error: BaseException | None) -> BaseException | None:
        """End the body, which raised ``error``; return the rest of ``error`` without our own cancellation.

        Raises:
            UsageError: no body runs.
        """
        if self._life.state != "open":
            raise UsageError(f"{self.name} is not open: use it in 'async with'")
        kind = None if error is None else type(error)
        trace = None if error is None else error.__traceback__
        self._life.on("leave")
        try:
            absorbed = self._scope.__exit__(kind, error, trace)
        except BaseExceptionGroup as rest:
            return rest
        if absorbed or (self.failure is not None and _only_cancelled(error)):
            # A block around this one may be cancelled for the same reason; this one says why.
            return None
        return error

    async def close_after(self, left: BaseException | None, close: Callable[[], Awaitable[None]]) -> None:
        """Call ``close`` after a body that left ``left``; a cancellation during ``close`` does not hide an error of the
        body.

        Checkpoint: as ``close``.  Cancellation: as ``close``.
        """
        try:
            await close()
        except trio.Cancelled:
            if self.failure is None and (left is None or _only_cancelled(left)):
                raise

    def met(self, left: BaseException | None) -> bool:
        """Whether the body has ended with the failure itself, which a call in it has raised."""
        return self.failure is not None and _same(self.failure, left)

    def conclude(self, error: BaseException | None, left: BaseException | None) -> bool:
        """Give the result of ``__aexit__``, or raise: ``error`` is the exception of the body, ``left`` its rest after
        our own cancellation."""
        failure = self.failure
        if failure is None or not isinstance(left, Exception | None) or _same(failure, left):
            if left is None or left is error:
                return left is None and error is not None
            failure, left = left, left.__context__
        elif _in_chain(failure, left):
            failure = copied_error(failure)
        try:
            raise failure
        finally:
            # The interpreter has put here whatever is being handled, our own cancellation too.
            failure.__context__ = left


def _only_cancelled(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled)


def _in_chain(error: BaseException, link: BaseException | None) -> bool:
    while link is not None and link is not error:
        link = link.__context__
    return link is error


def _same(failure: BaseException, left: BaseException | None) -> bool:
    """Whether the body raised the failure itself, which a call or a block in it has met first."""
    if left is None:
        return False
    return left is failure or left.__cause__ is failure or (type(left) is type(failure) and left.args == failure.args)
