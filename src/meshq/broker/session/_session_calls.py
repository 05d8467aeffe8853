"""The calls of a client, each of which gets one answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from meshq import limits
from meshq.broker.core._running_operations import RunningOperations
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.management._management import flat
from meshq.broker.session._answers import Answers
from meshq.broker.session._session_stream import SessionStream
from meshq.broker.work._closing import Closing
from meshq.broker.work._long_operations import LongOperation, Steps
from meshq.errors import (
    ClosedError,
    DuplicateError,
    JournalBrokenError,
    MeshqError,
    NotActiveError,
    RemoteProtocolError,
    TransactionRolledBackError,
)
from meshq.wire import Answer, Frame, FrameType, refusal_of, violation

T = TypeVar("T")


class SessionCalls:
    """The calls of one session that wait for their answers."""

    __slots__ = ("_answers", "_closing", "_release_queue", "_running_operations", "_stream", "_waiting")

    def __init__(
        self,
        stream: SessionStream,
        release_queue: ReleaseQueue,
        running_operations: RunningOperations,
        closing: Closing,
    ) -> None:
        self._release_queue = release_queue
        self._running_operations = running_operations
        self._closing = closing
        self._stream = stream
        # Ids of calls without an answer; an ordered set.
        self._waiting: dict[int, None] = {}
        self._answers = Answers()

    def begin(self, frame: Frame) -> None:
        """Note the id of a call; no other call may have it before the answer.

        Raises:
            RemoteProtocolError: the frame has no id, or that of a call without an answer; or there are too many.
        """
        if not frame.first:
            raise violation("bad_header", f"{frame.type.name} has no call id")
        if frame.first in self._waiting:
            raise violation("bad_number", f"call {frame.first} is not answered yet")
        self._answers.check(self._stream.outgoing.reported)
        if len(self._waiting) >= limits.CALLS_MAX:
            raise violation("too_many", f"{limits.CALLS_MAX} calls wait for their answers")
        self._waiting[frame.first] = None

    def answering(self, frame: Frame, work: Callable[[], dict[str, Any] | Steps], *, takes_in: bool = True) -> None:
        """Answer a frame with the result of ``work``, or of its last step, once its records are durable; or with its
        error.  ``takes_in``: ``work`` may only be done while the node takes something in."""
        values = self._try(frame, work, takes_in=takes_in)
        if values is None:
            return
        if isinstance(values, dict):
            self.answer_when_durable(frame.first, values)
        else:
            call = frame.first
            self._running_operations.schedule(
                LongOperation(values, partial(self.answer_when_durable, call), partial(self._decline_operation, call))
            )

    def answer_now(self, frame: Frame, work: Callable[[], dict[str, Any] | Steps]) -> None:
        """Answer a frame with the result of ``work``, or of its last step, or with its error, and wait for no disk."""
        values = self._try(frame, work)
        if isinstance(values, dict):
            self.answer(frame.first, values)
        elif values is not None:
            call = frame.first
            operation = LongOperation(values, partial(self.answer, call), partial(self._decline_operation, call))
            self._running_operations.schedule(operation)

    def _try(self, frame: Frame, work: Callable[[], T], *, takes_in: bool = True) -> T | None:
        try:
            if takes_in:
                self._closing.check()
            else:
                self._closing.check_running()
            return work()
        except RemoteProtocolError:
            raise
        except (DuplicateError, TransactionRolledBackError) as error:
            # Whoever hears of it takes the first ones for stored, or the transaction for rolled back by somebody: that
            # may still wait for its sync.
            self._release_queue.when_all_is_durable(partial(self.decline, frame.first, error))
            return None
        except MeshqError as error:
            self.decline(frame.first, error)
            return None

    def _decline_operation(self, call: int, error: MeshqError) -> None:
        if isinstance(error, (NotActiveError, JournalBrokenError, ClosedError)):
            # Nothing more becomes durable here.
            self.decline(call, error)
        else:
            self._release_queue.when_all_is_durable(partial(self.decline, call, error))

    def decline(self, call: int, error: MeshqError) -> None:
        """Answer a call with why it is not done."""
        refusal = refusal_of(error)
        # What the error alone would say of the outcome is not sent.
        values = {} if error.outcome == refusal.error.default_outcome else {"outcome": error.outcome}
        self.answer(call, values, code=refusal.number, text=str(error)[:1024])

    def answer_when_durable(self, call: int, values: dict[str, Any]) -> None:
        """Answer a call once everything that was placed before is durable."""
        self._release_queue.when_all_is_durable(lambda: self.answer(call, values))

    def answer(self, call: int, values: dict[str, Any], *, code: int = 0, text: str = "") -> None:
        """Answer a call; without a call of this id nothing is sent."""
        if self._waiting.pop(call, False) is None:
            pairs = tuple(item for pair in flat(values).items() for item in pair)
            header = Answer(code=code, text=text, values=pairs)
            self._say(Frame(FrameType.ANSWER, first=call, header=header.encode()))

    def answer_piece(self, call: int, data: bytes) -> None:
        """Answer a call with the bytes that it has asked for."""
        if self._waiting.pop(call, False) is None:
            self._say(Frame(FrameType.PIECE, first=call, body=data))

    def _say(self, frame: Frame) -> None:
        self._stream.say_later(frame)
        if self._stream.resumable:
            self._answers.add(frame)
