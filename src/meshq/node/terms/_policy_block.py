"""The end of a policy's block, for which the policy has a limited time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from meshq.logs import logger

_log = logger("node")


class PolicyBlock:
    """The block of a policy: a policy that does not end its block in time is cancelled.

    ``scope`` is around the block.
    """

    def __init__(self, scope: trio.CancelScope, timeout_s: float) -> None:
        self._scope = scope
        self._timeout_s = timeout_s
        self._left = False
        # What the broker raised in the block.
        self._error: BaseException | None = None

    @contextmanager
    def used(self) -> Iterator[None]:
        """Surround everything that the broker does in the block; the policy's time begins at the end."""
        try:
            yield
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._left = True
            self._scope.deadline = trio.current_time() + self._timeout_s

    def conclude(self) -> None:
        """Log a warning if the policy was cancelled at the end of its block; called behind the block.

        Raises: what the broker raised in the block, because the cancellation has taken the place of that error.
        """
        if not (self._left and self._scope.cancelled_caught):
            return
        text = "the policy of ha= did not end its block within the stop timeout of %g s, and was cancelled"
        _log.warning(text, self._timeout_s, extra={"event": "policy_cancelled"})
        if self._error is not None:
            raise self._error
