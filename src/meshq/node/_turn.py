"""A turn of a node as the active one, from the opening of the store to the end of the turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import trio

from meshq.abc import Activation, ActiveTerm, ReplicationSink, StepBack, TermGuard
from meshq.concurrency import first_error
from meshq.errors import DamagedError, JournalBrokenError, UsageError
from meshq.logs import logger
from meshq.node._node import Node

_log = logger("node")


class StartReport:
    """The report that a broker has started, made once in all turns of the broker."""

    def __init__(self, task_status: trio.TaskStatus[None]) -> None:
        self._task_status = task_status
        self._made = False

    @property
    def missed(self) -> bool:
        """Whether a caller waits for the report, which was not made."""
        return not (self._made or self._task_status is trio.TASK_STATUS_IGNORED)

    def make(self) -> None:
        """Report that the broker has started; later calls are silent."""
        if not self._made:
            self._made = True
            self._task_status.started()


class Turn:
    """A turn, which ends when the broker is stopped or the node has to step back."""

    def __init__(self, term: ActiveTerm | None = None) -> None:
        term = term or ActiveTerm()
        #: Where the records of the store have to be durable, too.
        self.sink: ReplicationSink | None = term.sink
        #: The bounds of the term; None: there are none.
        self.guard: TermGuard | None = term.guard
        #: When the role was last another node's.
        self.vacant_since: float | None = term.vacant_since
        #: Set when the turn is over.
        self.over: trio.Event = trio.Event()
        #: Around everything that the node does in the turn; cancelled if the node has to step back at once, or if the
        #: turn is over before the node is active.
        self.scope: trio.CancelScope = trio.CancelScope()
        #: The node, as soon as its store is open.
        self.node: Node | None = None
        #: Whether the node was active in the turn.
        self.active: bool = False
        #: Why the node has to step back; None: the broker was stopped, or the turn is not over.
        self.step_back: StepBack | None = None

    async def watch(self, activation: Activation) -> None:
        """End the turn when the activation is lost.

        Checkpoint: always.
        Cancellation: the node does not hear of later orders.
        Raises:
            UsageError: the policy has given no order.
        """
        last: StepBack | None = None
        while True:
            order = checked_order(await activation.lost())
            if not self.over.is_set():
                self.step_back = order
            # Also a node that is stopping, or steps back already, may have to go at once.
            if order.at_once and self.node is not None:
                self.node.abandon(order.reason)
            if order.at_once:
                self.scope.cancel()
            self.end()
            if order.at_once or not self.active or order == last:
                return
            last = order

    def excuses(self, error: BaseException) -> bool:
        """Whether an error of the store says no more than that the term is over."""
        over = self.guard.over if self.guard is not None else None
        return over is not None and isinstance(first_error(error), JournalBrokenError | OSError | DamagedError)

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Surround the turn: a store that fails because the term is over is a step back, no failure."""
        try:
            yield
        except BaseException as error:
            if self.guard is None or not self.excuses(error):
                raise
            self.step_back = self.guard.over
            self.over.set()
            why = "" if self.step_back is None else self.step_back.reason
            text = "the store failed because the term is over (%s): %s"
            _log.warning(text, why, first_error(error), extra={"event": "term_over"})

    def end(self) -> None:
        """End the turn: a node that is active stops, and a node that is not active yet is cancelled.

        Clients that are there before the node is active are told, unless the node was cancelled before.
        """
        self.over.set()
        if self.active:
            return
        if self.node is not None and not self.scope.cancel_called:
            self.node.take_leave("" if self.step_back is None else self.step_back.reason)
        self.scope.cancel()


def checked_block(block: object) -> AbstractAsyncContextManager[Activation]:
    """Return the block in which a policy competes for its role.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(block, AbstractAsyncContextManager):
        raise UsageError(f"the policy's activation() returned {block!r}; allowed is an async context manager")
    return block


def checked_activation(activation: Activation) -> Activation:
    """Return the activation that the block of a policy has given.

    Raises:
        UsageError: it is none.
    """
    if not all(callable(getattr(activation, call, None)) for call in ("wait", "lost", "release")):
        raise UsageError(f"the block of the policy's activation() gave {activation!r}; allowed is an Activation")
    return activation


def only_cancelled(error: BaseException) -> bool:
    """Whether an error is a cancellation and nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled)


def checked_term(term: object) -> ActiveTerm:
    """Return the term that a policy has given.

    Raises:
        UsageError: it is no term.
    """
    if type(term) is not ActiveTerm or not (term.data_dir is None or type(term.data_dir) is str):
        raise UsageError(f"the activation's wait() returned {term!r}; allowed is an ActiveTerm with a path, or without")
    if not (term.sink is None or isinstance(term.sink, ReplicationSink)):
        raise UsageError(f"the activation's term has {term.sink!r} as its sink; allowed is a ReplicationSink, or None")
    return term


def checked_order(order: object) -> StepBack:
    """Return the order that a policy has given.

    Raises:
        UsageError: it is no order to step back.
    """
    if type(order) is not StepBack:
        raise UsageError(f"the activation's lost() returned {order!r}; allowed is a StepBack")
    return order
