"""The check of the rows of a run from a peer, all rows in one go.

The table of a run is 1,280 numbers that have to rise, fit the body, keep limits and agree with the kinds.  A loop
over them costs more than everything else that is done with a run, and so do columns as Python lists: each number
becomes an object.

Here the whole table is one integer, and its 32-bit words are lanes of it: adding, subtracting and comparing that
integer does the same to 1,280 words at once, in the interpreter's own arithmetic.  It works as long as no lane
carries into the next, so every end must be below 2**31, which is checked first.  Two tricks are all that is used:

- ``(b | HIGH) - a`` has a lane's highest bit set exactly where ``b >= a`` there, the other bits being the difference;
- ``x + (2**31 - 1 - limit)`` sets it exactly where ``x > limit``.

Lanes of a row, lowest first: kind, end of the id, of the headers, of the properties, of the body.  The kind's lane is
overwritten with the end of the row before, so that a lane minus the one below it is always the size of a part.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from meshq import limits
from meshq.wire._frames import RUN_ROW_BYTES
from meshq.wire._refusals import violation
from meshq.wire._run import (
    KIND_CONTROL,
    KIND_HEADERS,
    KIND_ID,
    KIND_PARTS,
    KIND_PRIORITY,
    KIND_PROPERTIES,
    PRIORITY_SHIFT,
    RunBytes,
)

_LANE: Final = 32
_ROW: Final = RUN_ROW_BYTES * 8
_WORD_MAX: Final = 2**31 - 1
_ROW_WORDS: Final = struct.Struct("<5I")
_PRIORITIES: Final = bytes(range(limits.PRIORITY_MAX + 1))
_KIND_BITS: Final = KIND_PARTS | KIND_CONTROL | 0xF << PRIORITY_SHIFT
#: Takes KIND_CONTROL out of a column of kinds.
_PARTS_OF: Final = bytes(kind & ~KIND_CONTROL for kind in range(256))

assert limits.BODY_BYTES_MAX * 2 < _WORD_MAX, "the ends of a run, and of a part of one, leave a lane's highest bit free"
assert limits.ENVELOPE_BYTES_MAX * 2 < _WORD_MAX, "the sizes of two parts add up within a lane"


class _RowConstants(NamedTuple):
    """Constants for up to ``rows`` rows; lanes above the rows of a shorter table are zero and stay harmless."""

    rows: int
    # Each lane's highest bit.
    high: int
    # Bits that must not be set: the highest of each end, and all of a kind's that have no meaning.
    forbidden: int
    # The lanes of all ends, and of the bodies' alone.
    ends: int
    bodies: int
    # The lanes of the sizes of headers, after the subtraction.
    headers: int
    # Added to the sizes, it sets the highest bit where one is not zero, or is over its limit.
    present: int
    limits: int
    # Added to headers and properties together.
    both: int
    # For each kind without priority: the highest bits of the parts that it says are there.
    parts: tuple[int, ...]


def _constants(rows: int) -> _RowConstants:
    # A 1 at the foot of each row.
    each = int.from_bytes((b"\1" + bytes(RUN_ROW_BYTES - 1)) * rows, "little")
    sizes_max = (
        limits.DUPLICATE_ID_BYTES_MAX,
        limits.ENVELOPE_BYTES_MAX,
        limits.ENVELOPE_BYTES_MAX,
        limits.MESSAGE_BYTES_MAX,
        0,
    )
    high = each * sum(1 << _LANE * lane + 31 for lane in range(5))
    word = 2**_LANE - 1
    return _RowConstants(
        rows=rows,
        high=high,
        forbidden=high | each * (word & ~_KIND_BITS),
        ends=each * sum(word << _LANE * lane for lane in range(1, 5)),
        bodies=each * (word << _LANE * 4),
        headers=each * (word << _LANE),
        present=each * sum(_WORD_MAX << _LANE * lane for lane in range(3)),
        limits=each * sum((_WORD_MAX - limit) << _LANE * lane for lane, limit in enumerate(sizes_max)),
        both=each * ((_WORD_MAX - limits.ENVELOPE_BYTES_MAX) << _LANE),
        parts=tuple(
            each * sum(1 << _LANE * lane + 31 for lane in range(3) if kind >> lane & 1)
            for kind in range(KIND_PARTS + 1)
        ),
    )


assert (KIND_ID, KIND_HEADERS, KIND_PROPERTIES) == (1, 2, 4), "a kind's bits stand in the order of the ends"
#: Short tables are compared with short constants.
_SHORT: Final = _constants(8)
_MIDDLE: Final = _constants(48)
_LONG: Final = _constants(limits.RUN_MESSAGES_MAX)


def check_run(run: RunBytes) -> int:
    """Check the rows of a run from a peer against its body.

    Returns all kinds' bits or-ed together, and ``KIND_PRIORITY`` if a message has another priority than the default:
    the answer is ``KIND_PLAIN`` exactly if every message is plain.

    Raises:
        RemoteProtocolError: the rows contradict each other or the body, or a part is over its limit.
    """
    rows, table, base, body = run
    if not 0 < rows <= limits.RUN_MESSAGES_MAX or len(table) != rows * RUN_ROW_BYTES:
        raise violation("bad_table", f"{rows} messages in {len(table)} bytes of rows")
    if not 0 <= base <= limits.BODY_BYTES_MAX:
        raise violation("bad_table", f"the rows count from {base}")
    if rows == 1:
        return _check_one(table, base, len(body))
    lanes = _SHORT if rows <= _SHORT.rows else _MIDDLE if rows <= _MIDDLE.rows else _LONG
    table = bytes(table)
    words = int.from_bytes(table, "little")
    priorities = table[1::RUN_ROW_BYTES]
    if words & lanes.forbidden or priorities.translate(None, _PRIORITIES):
        raise violation("bad_table", "a row has an unknown kind, or an end that no run can have")
    carried = (words & lanes.bodies) << _LANE
    last = carried >> _ROW * rows
    if last - base != len(body):
        raise violation("bad_table", f"the rows describe {last - base} bytes, the body has {len(body)}")
    below = (words & lanes.ends) | (carried ^ last << _ROW * rows) | base
    above = below >> _LANE | last << _ROW * rows - _LANE
    sizes = (above | lanes.high) - below
    if sizes & lanes.high != lanes.high:
        raise violation("bad_table", "the rows do not rise")
    sizes ^= lanes.high
    if sizes + lanes.limits & lanes.high:
        raise violation("too_large", _limits_text())
    kinds = table[0::RUN_ROW_BYTES]
    parts = kinds.translate(_PARTS_OF)
    union = _check_kinds(parts, sizes + lanes.present & lanes.high, words, lanes)
    if parts != kinds:
        _check_control(kinds)
        union |= KIND_CONTROL
    if union & KIND_HEADERS and union & KIND_PROPERTIES:
        both = (sizes & lanes.headers) + (sizes >> _LANE & lanes.headers)
        if both + lanes.both & lanes.high:
            raise violation("too_large", _limits_text())
    if priorities.count(limits.PRIORITY_DEFAULT) != rows:
        for priority in _PRIORITIES:
            if priority in priorities:
                union |= priority << PRIORITY_SHIFT
        return union | KIND_PRIORITY
    return union | limits.PRIORITY_DEFAULT << PRIORITY_SHIFT


def _check_kinds(kinds: bytes, present: int, words: int, lanes: _RowConstants) -> int:
    """Check that the kinds name the parts that exist; return the bits of these parts."""
    first = kinds[0]
    # The parts' lanes of ``present`` only: a body, and the gap behind it, have no bit in the kind.
    found = present & lanes.parts[KIND_PARTS]
    if kinds.count(first) == len(kinds):
        # All alike, as nearly always.  The constant may be for more rows than there are.
        named = lanes.parts[first]
        if len(kinds) < lanes.rows:
            named &= (1 << _ROW * len(kinds)) - 1
        union = first
    else:
        named = (words << 31 & lanes.parts[KIND_ID]) | (words << 62 & lanes.parts[KIND_HEADERS])
        named |= words << 93 & lanes.parts[KIND_PROPERTIES]
        union = 0
        for kind in range(KIND_PARTS + 1):
            if kind in kinds:
                union |= kind
    if found != named:
        raise violation("bad_table", "a row's kind names other parts than it has")
    return union


def _check_control(kinds: bytes) -> None:
    for kind in dict.fromkeys(kinds):
        if kind & KIND_CONTROL and not kind & KIND_HEADERS:
            raise violation("bad_table", "a row's kind speaks of headers that it has not")


def _check_one(table: bytes | memoryview, base: int, body_size: int) -> int:
    """Check a run of one message, which needs no lanes."""
    words: tuple[int, int, int, int, int] = _ROW_WORDS.unpack(table)
    kind, id_end, headers_end, properties_end, end = words
    if kind & ~_KIND_BITS or kind >> PRIORITY_SHIFT > limits.PRIORITY_MAX:
        raise violation("bad_table", f"a row has the unknown kind {kind:#x}")
    if end - base != body_size:
        raise violation("bad_table", f"the rows describe {end - base} bytes, the body has {body_size}")
    if not base <= id_end <= headers_end <= properties_end <= end:
        raise violation("bad_table", "the rows do not rise")
    if (
        id_end - base > limits.DUPLICATE_ID_BYTES_MAX
        or properties_end - id_end > limits.ENVELOPE_BYTES_MAX
        or end - properties_end > limits.MESSAGE_BYTES_MAX
    ):
        raise violation("too_large", _limits_text())
    found = (
        (KIND_ID if id_end > base else 0)
        | (KIND_HEADERS if headers_end > id_end else 0)
        | (KIND_PROPERTIES if properties_end > headers_end else 0)
    )
    if found != kind & KIND_PARTS:
        raise violation("bad_table", "a row's kind names other parts than it has")
    if kind & KIND_CONTROL:
        _check_control(bytes((kind & 0xFF,)))
    return kind if kind >> PRIORITY_SHIFT == limits.PRIORITY_DEFAULT else kind | KIND_PRIORITY


def _limits_text() -> str:
    return (
        f"a duplicate id has at most {limits.DUPLICATE_ID_BYTES_MAX} bytes, headers and properties together "
        f"{limits.ENVELOPE_BYTES_MAX}, a body {limits.MESSAGE_BYTES_MAX}"
    )
