"""Questions, replies and promises of witnesses as bytes: msgpack lists of a fixed shape, behind a version."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, get_args

import msgpack

from meshq.abc import QuorumRecord
from meshq.errors import DamagedError, RemoteProtocolError, UsageError
from meshq.ha.quorum.mesh._witness_machine import Kind, Question, Reason, Reply, VoterState
from meshq.ids import IDENTITY_BYTES

VERSION: Final = 1
#: A record has the names of a few nodes.
MESSAGE_BYTES_MAX: Final = 64 * 1024
#: A record leaves room for the names of its witnesses.
RECORD_BYTES_MAX: Final = 8 * 1024
_NAMES_MAX: Final = 1_000
_KINDS: Final[tuple[str, ...]] = get_args(Kind)
_REASONS: Final[tuple[str, ...]] = get_args(Reason)


def _pack(value: list[Any]) -> bytes:
    data: bytes = msgpack.packb(value, use_bin_type=True)
    if len(data) > MESSAGE_BYTES_MAX:
        raise UsageError(f"a record of {len(data)} bytes is larger than a quorum keeps: {MESSAGE_BYTES_MAX}")
    return data


def _unpack(data: bytes, size: int) -> list[Any]:
    value = msgpack.unpackb(
        data,
        raw=False,
        max_array_len=_NAMES_MAX,
        max_map_len=0,
        max_ext_len=0,
        max_str_len=MESSAGE_BYTES_MAX,
        max_bin_len=MESSAGE_BYTES_MAX,
    )
    if type(value) is not list or len(value) != size:
        raise ValueError("another number of parts")
    return value


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("no number")
    return value


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError("no text")
    return value


def _id(value: object, *, empty: bool = False) -> bytes:
    if type(value) is not bytes or len(value) not in ((0, IDENTITY_BYTES) if empty else (IDENTITY_BYTES,)):
        raise ValueError("no id")
    return value


def _names(value: object) -> tuple[str, ...]:
    if type(value) is not list:
        raise ValueError("no list of names")
    return tuple(map(_text, value))


def _seconds(value: object) -> float:
    if type(value) is not float or not 0 <= value < math.inf:
        raise ValueError("no seconds")
    return value


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError("neither yes nor no")
    return value


def _record_parts(record: QuorumRecord) -> list[Any]:
    return [record.epoch, record.sequence, record.claimed, list(record.in_sync), record.holder]


def _record(value: object) -> QuorumRecord:
    if type(value) is not list or len(value) != 5:
        raise ValueError("no record")
    epoch, sequence, claimed, in_sync, holder = value
    return QuorumRecord(
        epoch=_number(epoch),
        sequence=_number(sequence),
        claimed=_number(claimed),
        in_sync=_names(in_sync),
        holder=_text(holder),
    )


def encode_record(record: QuorumRecord) -> bytes:
    """Return the bytes of a record alone.  Raises: UsageError if it is too large."""
    return _pack([VERSION, _record_parts(record)])


def decode_record(data: bytes) -> QuorumRecord:
    """Read a record.  Raises: RemoteProtocolError."""
    try:
        version, record = _unpack(data, 2)
        if version != VERSION:
            raise ValueError("another version")
        return _record(record)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"the quorum has a record that can't be read: {error}") from error


def check_record(record: QuorumRecord) -> None:
    """Check the size of a record before anything is sent.  Raises: UsageError."""
    size = len(msgpack.packb(_record_parts(record), use_bin_type=True))
    if size > RECORD_BYTES_MAX:
        raise UsageError(f"a record of {size} bytes is larger than a quorum keeps: {RECORD_BYTES_MAX}")


def _state_parts(state: VoterState) -> list[Any]:
    kept = [*state.kept, _record_parts(state.record)]
    return [state.ballot, state.instance, state.session_s, state.released, list(state.servers), *kept]


def _state(parts: list[Any]) -> VoterState:
    ballot, instance, session_s, released, servers, kept_ballot, kept_number, record = parts
    return VoterState(
        ballot=_number(ballot),
        instance=_id(instance, empty=True),
        session_s=_seconds(session_s),
        released=_flag(released),
        servers=_names(servers),
        kept=(_number(kept_ballot), _number(kept_number)),
        record=_record(record),
    )


def encode_state(node_id: bytes, state: VoterState) -> bytes:
    """Return the bytes of a promise, as the journal of a witness keeps the promise."""
    return _pack([VERSION, node_id, *_state_parts(state)])


def decode_state(data: bytes, place: str, position: int) -> tuple[bytes, VoterState]:
    """Read a record of a journal.  Raises: DamagedError."""
    try:
        version, node_id, *parts = _unpack(data, 10)
        if version != VERSION:
            raise ValueError("another version")
        return _id(node_id), _state(parts)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise DamagedError(place, position, "what a witness has promised", "other bytes") from error


def encode_question(number: int, question: Question) -> bytes:
    """Return the bytes of a question, with the number that its reply has, too."""
    parts = [question.kind, question.node_id, question.instance, question.ballot, question.session_s]
    more = [list(question.servers), question.number, _record_parts(question.record), question.forget]
    return _pack([number, *parts, *more])


def decode_question(data: bytes) -> tuple[int, Question]:
    """Read a question.  Raises: RemoteProtocolError."""
    try:
        number, kind, node_id, instance, ballot, session_s, servers, of_record, record, forget = _unpack(data, 10)
        if kind not in _KINDS:
            raise ValueError("an unknown question")
        question = Question(
            kind=kind,
            node_id=_id(node_id),
            instance=_id(instance),
            ballot=_number(ballot),
            session_s=_seconds(session_s),
            servers=_names(servers),
            number=_number(of_record),
            record=_record(record),
            forget=_flag(forget),
        )
        return _number(number), question
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"a question that can't be read: {error}") from error


def encode_reply(number: int, reply: Reply) -> bytes:
    """Return the bytes of a reply to the question with a number."""
    return _pack([number, reply.granted, reply.reason, *_state_parts(reply.promise)])


def decode_reply(data: bytes) -> tuple[int, Reply]:
    """Read a reply.  Raises: RemoteProtocolError."""
    try:
        number, granted, reason, *parts = _unpack(data, 11)
        if reason not in _REASONS:
            raise ValueError("an unknown reason")
        return _number(number), Reply(granted=_flag(granted), reason=reason, promise=_state(parts))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"a reply that can't be read: {error}") from error


def encode_list(number: int, node_ids: Sequence[bytes]) -> bytes:
    """Return the bytes of the answer to a question for node ids."""
    return _pack([number, list(node_ids)])


def decode_list(data: bytes) -> tuple[int, tuple[bytes, ...]]:
    """Read node ids.  Raises: RemoteProtocolError."""
    try:
        number, node_ids = _unpack(data, 2)
        if type(node_ids) is not list:
            raise ValueError("no list of ids")
        return _number(number), tuple(map(_id, node_ids))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"a list that can't be read: {error}") from error
