"""``send_many``: messages are cut into runs, and one completion stands for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, cast

from meshq import limits
from meshq.client.outgoing._outbox import OutgoingRun
from meshq.client.send._envelope import PLAIN_ROW, EnvelopeEncoder, Row
from meshq.concurrency import Completion, copied_error
from meshq.errors import MeshqError, Outcome, SettingsError, kind_of
from meshq.message import Message, check_body
from meshq.wire import (
    HEADER_BRIDGED,
    HEADER_PATH,
    KIND_HEADERS,
    KIND_ID,
    Envelope,
    decode_map,
    encode_map,
    encode_run,
    without_names,
)

_ONLY_BYTES: Final = frozenset({bytes})
_NO_CONTROL: Final = (limits.PRIORITY_DEFAULT, None, None, None)


def combined(results: Sequence[MeshqError | None]) -> MeshqError:
    """The error that stands for all of ``results``: of the first one's kind, with all of them listed.

    Its outcome is ``not_done`` only if that is true of every message; a mixture is ``unknown`` as a whole.
    """
    errors = [error for error in results if error is not None]
    error = copied_error(errors[0])
    outcome: Outcome = "unknown"
    if len(errors) == len(results) and all(one.outcome == "not_done" for one in errors):
        outcome = "not_done"
    error.outcome = outcome
    error.results = tuple(results)
    if len(results) > 1:
        error.args = (f"{len(errors)} of {len(results)} messages failed: {errors[0]}",)
    return error


class SendBatch(Completion):
    """The completion of one ``send_many``: waits for all its runs."""

    __slots__ = ("_messages", "_on_change", "_open", "_results")

    def __init__(self, on_change: Callable[[], None] | None = None) -> None:
        """``on_change``: called when all runs are decided, and when a run that had to wait is sent."""
        super().__init__()
        self._on_change = on_change
        self._messages = 0
        # Messages that are not decided yet.
        self._open = 0
        self._results: list[MeshqError | None] | None = None

    def expect(self, runs: list[OutgoingRun]) -> None:
        """Wait for these runs."""
        self._messages = self._open = sum(run.count for run in runs)

    def run_settled(self, run: OutgoingRun, error: MeshqError | None) -> None:
        """Take the outcome of a run: confirmed, failed or timed out; later outcomes are ignored."""
        if run.done:
            return
        if error is not None:
            results = self._results
            if results is None:
                results = self._results = [None] * self._messages
            results[run.start : run.start + run.count] = [error] * run.count
        run.succeed()
        self._open -= run.count
        if not self._open:
            if self._results is None:
                self.succeed()
            else:
                self.fail(combined(self._results))
            if self._on_change is not None:
                self._on_change()

    def run_sent(self) -> None:
        """Note that a run has left the send queue."""
        if self._on_change is not None:
            self._on_change()


class BridgedMessage(NamedTuple):
    """A message of a bridge; ``bridge_id``: by what its target knows it again, empty if by nothing.

    ``path``: the way through a network of brokers on which it comes, encoded; empty: it comes on none.
    """

    message: Message
    bridge_id: bytes
    path: str = ""

    def row(self, encoder: EnvelopeEncoder) -> Row:
        """Its envelope: the bridge's id where a duplicate id stands, and the sender's beside it.

        Raises:
            SettingsError: a part of the message is not allowed.
        """
        kind, own, headers, properties = _row(self.message, encoder)
        if not own and not self.bridge_id and not self.path:
            return kind, own, headers, properties
        values = decode_map(headers, limits.ENVELOPE_BYTES_MAX, lists=False) if headers else {}
        more = {HEADER_BRIDGED: own, HEADER_PATH: self.path} if self.path else {HEADER_BRIDGED: own}
        beside = encode_map({**values, **more})
        if self.path and len(beside) + len(properties) > limits.ENVELOPE_BYTES_MAX:
            beside = encode_map({**values, **more, HEADER_PATH: without_names(self.path)})
        if len(beside) + len(properties) > limits.ENVELOPE_BYTES_MAX:
            allowed = f"at most {limits.ENVELOPE_BYTES_MAX} bytes with the path of the message"
            raise SettingsError("properties", None, allowed, shown=f"<{len(beside) + len(properties)} bytes, encoded>")
        kind = kind & ~KIND_ID | KIND_HEADERS | (KIND_ID if self.bridge_id else 0)
        return kind, self.bridge_id, beside, properties


def _plain_run(bodies: Sequence[bytes], durable: bool, stamp: int, batch: SendBatch) -> OutgoingRun | None:
    """Plain bodies that fit in one run, at a glance; None if they are something else."""
    if not 0 < len(bodies) <= limits.RUN_MESSAGES_MAX or not _ONLY_BYTES.issuperset(map(type, bodies)):
        return None
    if sum(map(len, bodies)) > limits.RUN_BYTES_TARGET:
        return None
    return OutgoingRun(encode_run(bodies), durable, stamp, batch, plain=True)


def cut_rows(
    bodies: Sequence[bytes], rows: Sequence[Row], durable: Sequence[bool], stamp: int, batch: SendBatch
) -> list[OutgoingRun]:
    """Cut messages whose envelopes are encoded into runs, in order."""
    runs: list[OutgoingRun] = []
    start, count = 0, len(bodies)
    while start < count:
        end = min(count, start + limits.RUN_MESSAGES_MAX)
        if durable[start:end].count(durable[start]) < end - start:
            end = durable.index(not durable[start], start)
        if _size(bodies[start:end], rows[start:end]) > limits.RUN_BYTES_TARGET:
            size = 0
            for at in range(start, end):
                size += _size(bodies[at : at + 1], rows[at : at + 1])
                if size > limits.RUN_BYTES_TARGET:
                    end = max(at, start + 1)
                    break
        envelopes = cast("Sequence[Envelope]", rows[start:end])
        run = OutgoingRun(encode_run(bodies[start:end], envelopes), durable[start], stamp, batch)
        run.start = start
        runs.append(run)
        start = end
    return runs


def _size(bodies: Sequence[bytes], rows: Sequence[Row]) -> int:
    _, ids, headers, properties = zip(*rows, strict=True)
    return sum(sum(map(len, column)) for column in (bodies, ids, headers, properties))


def cut_into_runs(
    messages: Iterable[bytes | Message | BridgedMessage],
    encoder: EnvelopeEncoder,
    stamp: int,
    batch: SendBatch,
    *,
    bodies_durable: bool = True,
) -> list[OutgoingRun]:
    """Messages as runs, in order; ``bodies_durable`` is for those that are given as mere bodies.

    Raises:
        SettingsError: one of them is not allowed.
    """
    if isinstance(messages, (bytes, str, Message)):
        raise SettingsError("messages", None, "a list of bodies or messages", shown=kind_of(messages))
    if type(messages) is list:
        run = _plain_run(cast("list[bytes]", messages), bodies_durable, stamp, batch)
        if run is not None:
            return [run]
    runs: list[OutgoingRun] = []
    bodies: list[bytes] = []
    rows: list[Row] = []
    plain, durable, size, start = True, True, 0, 0

    def close() -> None:
        nonlocal plain, size, start, bodies, rows
        envelopes = None if plain else cast("list[Envelope]", rows)
        run = OutgoingRun(encode_run(bodies, envelopes), durable, stamp, batch, plain=plain)
        run.start = start
        start += run.count
        runs.append(run)
        bodies, rows, plain, size = [], [], True, 0

    for message in messages:
        if type(message) is bytes and len(message) <= limits.MESSAGE_BYTES_MAX:
            body, row, is_durable = message, PLAIN_ROW, bodies_durable
        elif isinstance(message, Message):
            body, is_durable = message.body, message.durable
            row = _row(message, encoder)
        elif type(message) is BridgedMessage:
            body, is_durable = message.message.body, message.message.durable
            row = message.row(encoder)
        else:
            body, row, is_durable = check_body(message), PLAIN_ROW, bodies_durable
        bytes_more = len(body) + len(row[1]) + len(row[2]) + len(row[3])
        full = len(bodies) == limits.RUN_MESSAGES_MAX or size + bytes_more > limits.RUN_BYTES_TARGET
        if bodies and (full or is_durable is not durable):
            close()
        durable = is_durable
        size += bytes_more
        bodies.append(body)
        rows.append(row)
        plain = plain and row is PLAIN_ROW
    if bodies:
        close()
    return runs


def _row(message: Message, encoder: EnvelopeEncoder) -> Row:
    extras = (message.duplicate_id, message.correlation_id, message.reply_to, message.content_type)
    control = (message.priority, message.ttl, message.delay, message.group)
    if message.properties is None and extras == (None, None, None, None) and control == _NO_CONTROL:
        return PLAIN_ROW
    return encoder.row(
        dict(message.properties) if message.properties is not None else None,
        *extras,
        *control,
    )
