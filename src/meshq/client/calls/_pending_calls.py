"""The pending calls of a session: sent calls that wait for answers, and calls that wait for a link."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, cast, get_args

from meshq import limits
from meshq.client.calls._calls import AnyCall, Call, LinkCall
from meshq.client.calls._frame_stream import FrameStream
from meshq.client.calls._link_failures import LinkFailures, outcome_of
from meshq.errors import MeshqError, Outcome
from meshq.wire import Answer, Frame, error_of, header_of, violation

OUTCOMES: Final = get_args(Outcome)


class PendingCalls:
    """The pending calls of one session, by number.  ``now`` is the monotonic clock."""

    __slots__ = ("_last", "_now", "_pending", "_stream", "unsent")

    def __init__(self, stream: FrameStream, now: Callable[[], float]) -> None:
        self._stream = stream
        self._now = now
        self._last = 0
        self._pending: dict[int, AnyCall] = {}
        #: Calls that could not be sent yet, in order.
        self.unsent: deque[AnyCall] = deque()

    def add(self, call: AnyCall) -> None:
        """Send a call, now or when there is a link."""
        if isinstance(call, (Call, LinkCall)):
            call.since = self._now()
        self.unsent.append(call)
        self.pump()

    def pump(self) -> None:
        """Send the waiting calls as far as possible."""
        unsent, stream = self.unsent, self._stream
        while unsent and stream.link is not None and len(self._pending) < limits.CALLS_MAX:
            call = unsent.popleft()
            if call.done:
                continue
            self._last += 1
            frame = call.frame(self._last)
            if isinstance(call, (Call, LinkCall)):
                call.since = self._now()
            self._pending[self._last] = call
            stream.out(frame)

    def answer(self, frame: Frame) -> None:
        """Pass an ANSWER frame to its call.

        Raises:
            RemoteProtocolError: to nothing that was asked.
        """
        call = self._pending.pop(frame.first, None)
        if call is None:
            raise violation("bad_number", f"an answer to call {frame.first}, which does not wait")
        header = header_of(frame, Answer)
        values = header.named
        error = error_of(header.code, header.text, _outcome(values)) if header.code else None
        call.answered(values, error)

    def piece(self, frame: Frame) -> None:
        """Pass a PIECE frame to its call.

        Raises:
            RemoteProtocolError: to nothing that was asked.
        """
        call = self._pending.pop(frame.first, None)
        if call is None:
            raise violation("bad_number", f"a piece for call {frame.first}, which does not wait")
        call.answered({"data": bytes(frame.body)}, None)

    def renew(self, epoch: int, link_failures: LinkFailures) -> None:
        """Handle a new session: sent calls fail, unsent calls still wait."""
        calls = [*self._pending.values(), *self.unsent]
        self._pending.clear()
        self.unsent.clear()
        self.unsent.extend(call for call in calls if call.renewed(epoch, link_failures))

    def fail(self, error: MeshqError) -> None:
        """Fail all calls: no answer will come any more."""
        calls = [*self._pending.values(), *self.unsent]
        self._pending.clear()
        self.unsent.clear()
        for call in calls:
            if isinstance(call, Call):
                call.fail(outcome_of(error, "unknown" if call.sent else "not_done"))


def _outcome(values: Mapping[str, object]) -> Outcome | None:
    """The outcome that an answer names, if it differs from the default outcome of the error."""
    outcome = values.get("outcome")
    if outcome is None or outcome in OUTCOMES:
        return cast("Outcome | None", outcome)
    raise violation("bad_header", f"the outcome {outcome!r}")
