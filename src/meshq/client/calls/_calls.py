"""Calls: frames that get an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from meshq.client.calls._link_failures import LinkFailures
from meshq.concurrency import Completion
from meshq.errors import CallTimeoutError, ClosedError, MeshqError, StaleDeliveryError, caused
from meshq.wire import Frame, FrameType

Values = dict[str, Any]


class Call(Completion):
    """A call that a task waits for.

    It ends with the session it was sent in: ``UnblockedError``.  While it is not sent it waits for a connection;
    ``epoch`` says that it makes sense in one session only.

    ``on_answer`` is called when the answer is there, ``on_failed`` with the error when the call fails.
    ``unfit`` is asked in each new session why the call can't be sent there, with whether it was sent before; None: it
    can.
    """

    __slots__ = ("_make", "_on_answer", "_on_failed", "_unfit", "epoch", "number", "sent", "what")

    queued: ClassVar[bool] = False
    waits_for_disk: ClassVar[bool] = False

    def __init__(
        self,
        what: str,
        make: Callable[[int], Frame],
        epoch: int | None = None,
        *,
        on_answer: Callable[[], None] | None = None,
        on_failed: Callable[[BaseException], None] | None = None,
        unfit: Callable[[bool], MeshqError | None] | None = None,
    ) -> None:
        super().__init__()
        #: How errors name it.
        self.what: str = what
        # Makes the frame from the call's number.
        self._make = make
        self.epoch: int | None = epoch
        #: Its number in the session, once sent.
        self.number: int = 0
        self.sent: bool = False
        self._on_answer = on_answer
        self._on_failed = on_failed
        self._unfit = unfit

    def frame(self, number: int) -> Frame:
        """Make the frame, which is sent now."""
        self.number = number
        self.sent = True
        return self._make(number)

    def answered(self, values: Values, error: MeshqError | None) -> None:
        """Take the answer."""
        if self._on_answer is not None:
            self._on_answer()
        if error is not None:
            self.fail(error)
        else:
            self.succeed(values)

    def fail(self, error: BaseException) -> None:
        """Fail the call with ``error``; later results are ignored."""
        super().fail(error)
        if self._on_failed is not None:
            self._on_failed(error)

    def renewed(self, epoch: int, link_failures: LinkFailures) -> bool:
        """Handle a new session, perhaps at another node; return whether the call is to be sent in it."""
        error = self._unfit(self.sent) if self._unfit is not None else None
        if error is not None:
            self.fail(error)
        elif self.sent:
            self.fail(link_failures.cut_off(f"{self.what} was cut off: its session was lost"))
        elif self.epoch is not None and self.epoch != epoch:
            self.fail(StaleDeliveryError(f"{self.what} came too late: the session was lost, the messages come again"))
        return not self.done

    def expired(self, why: BaseException) -> None:
        """Fail the call with a timeout; a late answer is dropped."""
        if self.sent:
            error = CallTimeoutError(f"{self.what} was not answered in time")
        else:
            error = CallTimeoutError(f"{self.what} found no connection in time", outcome="not_done")
        self.fail(caused(error, why))

    def abandon(self) -> None:
        """Withdraw the call if it is not sent yet; called when the waiting task is cancelled."""
        if not self.sent:
            self.fail(ClosedError(f"{self.what} was given up"))


class OpenCompletion(Completion):
    """The wait for a producer or consumer to be open, which may outlive sessions."""

    __slots__ = ("what",)

    queued: ClassVar[bool] = False
    waits_for_disk: ClassVar[bool] = False

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what: str = what

    def expired(self, why: BaseException) -> None:
        """Fail the wait with a timeout."""
        self.fail(caused(CallTimeoutError(f"{self.what} was not answered in time", outcome="not_done"), why))

    def abandon(self) -> None:
        """End the wait, because the waiting task was cancelled."""


class InnerCall:
    """A call of the client itself, which its maker repeats when the session is made anew."""

    __slots__ = ("_make", "_on_answer")

    def __init__(self, make: Callable[[int], Frame], on_answer: Callable[[Values, MeshqError | None], None]) -> None:
        self._make = make
        self._on_answer = on_answer

    @property
    def done(self) -> bool:
        """False: the call ends with its answer."""
        return False

    def frame(self, number: int) -> Frame:
        """Make the frame, which is sent now."""
        return self._make(number)

    def answered(self, values: Values, error: MeshqError | None) -> None:
        """Take the answer."""
        self._on_answer(values, error)

    def renewed(self, epoch: int, link_failures: LinkFailures) -> bool:
        """Return False: the maker of the call makes another one in the new session."""
        return False


class LinkCall(InnerCall):
    """A call of a link between nodes, with a timeout; when the time is up the whole session of the link is given up."""

    __slots__ = ("_answered", "_on_late", "since", "what")

    queued: ClassVar[bool] = False
    waits_for_disk: ClassVar[bool] = False

    def __init__(
        self,
        what: str,
        make: Callable[[int], Frame],
        on_answer: Callable[[Values, MeshqError | None], None],
        on_late: Callable[[MeshqError], None],
    ) -> None:
        super().__init__(make, on_answer)
        #: How errors name it.
        self.what: str = what
        #: When it was sent, or began to wait for a connection; seconds of trio's clock.
        self.since: float = 0.0
        self._on_late = on_late
        self._answered = False

    @property
    def done(self) -> bool:
        """Whether the call is answered, or its time is up."""
        return self._answered

    def answered(self, values: Values, error: MeshqError | None) -> None:
        """Take the answer."""
        self._answered = True
        super().answered(values, error)

    def expired(self, why: BaseException) -> None:
        """Give the session of the link up."""
        self._answered = True
        self._on_late(caused(CallTimeoutError(f"{self.what} was not answered in time"), why))


AnyCall = Call | InnerCall


def opening(frame_type: FrameType, channel: int, header: bytes) -> Callable[[int], Frame]:
    """Return a function that makes the frame of a call about a channel."""
    return lambda number: Frame(frame_type, channel=channel, first=number, header=header)
