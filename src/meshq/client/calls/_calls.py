"""Calls: frames that get an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshq.client.calls._completion import Completion
from meshq.client.calls._link_failures import LinkFailures
from meshq.errors import CallTimeoutError, ClosedError, MeshqError, StaleDeliveryError, caused
from meshq.wire import Frame, FrameType

Values = dict[str, Any]


class Call(Completion):
    """A call that a task waits for.

    It ends with the session it was sent in: ``UnblockedError``.  While it is not sent it waits for a connection;
    ``epoch`` says that it makes sense in one session only.
    """

    __slots__ = ("_make", "epoch", "number", "sent", "what")

    def __init__(self, what: str, make: Callable[[int], Frame], epoch: int | None = None) -> None:
        super().__init__()
        #: How errors name it.
        self.what = what
        # Makes the frame from the call's number.
        self._make = make
        self.epoch = epoch
        #: Its number in the session, once sent.
        self.number = 0
        self.sent = False

    def frame(self, number: int) -> Frame:
        """Make the frame, which is sent now."""
        self.number = number
        self.sent = True
        return self._make(number)

    def answered(self, values: Values, error: MeshqError | None) -> None:
        """Take the answer."""
        if error is not None:
            self.fail(error)
        else:
            self.succeed(values)

    def renewed(self, epoch: int, link_failures: LinkFailures) -> bool:
        """Handle a new session; return whether the call is to be sent in it."""
        if self.sent:
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


class NodeCall(Call):
    """A call that only one node can answer, such as the decision of a prepared transaction.

    ``elsewhere`` gives the error for where the session is now; None: it is at the right node.
    """

    __slots__ = ("_elsewhere",)

    def __init__(self, what: str, make: Callable[[int], Frame], elsewhere: Callable[[], MeshqError | None]) -> None:
        super().__init__(what, make)
        self._elsewhere = elsewhere

    def renewed(self, epoch: int, link_failures: LinkFailures) -> bool:
        """Handle a new session, perhaps at another node."""
        if not self.sent and (error := self._elsewhere()) is not None:
            self.fail(error)
        return super().renewed(epoch, link_failures) and not self.done


class OpenCompletion(Completion):
    """The wait for a producer or consumer to be open, which may outlive sessions."""

    __slots__ = ("sent", "what")

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        #: Whether an answer is awaited: whenever there is a connection.
        self.sent = True

    def expired(self, why: BaseException) -> None:
        """Fail the wait with a timeout."""
        self.fail(caused(CallTimeoutError(f"{self.what} was not answered in time", outcome="not_done"), why))

    def abandon(self) -> None:
        """End the wait, because the waiting task was cancelled."""


class LeaveCall(Call):
    """A LEAVE call: closes a channel, on which frames may still arrive until the answer."""

    __slots__ = ("_left",)

    def __init__(self, channel: int, header: bytes, epoch: int, left: Callable[[], None]) -> None:
        super().__init__("leaving", opening(FrameType.LEAVE, channel, header), epoch)
        self._left = left

    def answered(self, values: Values, error: MeshqError | None) -> None:
        """Take the answer: the broker has closed the channel."""
        self._left()
        super().answered(values, error)


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


AnyCall = Call | InnerCall


def opening(frame_type: FrameType, channel: int, header: bytes) -> Callable[[int], Frame]:
    """Return a function that makes the frame of a call about a channel."""
    return lambda number: Frame(frame_type, channel=channel, first=number, header=header)
