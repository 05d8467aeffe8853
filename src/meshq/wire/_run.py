"""A run of messages as bytes: a table of envelopes and one region that holds what they describe.

Each row has five little-endian u32: the kind, and where the message's duplicate id, headers, properties and body
end.  The ends count from the beginning of the run and rise all the way, so a slice of a run is two slices of
bytes, and a whole column is one slice of a typed view.  Kind: bits 0-2 say which of the optional parts a message
has, bits 8-11 its priority; the others are 0.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Final, NamedTuple

from meshq import limits
from meshq.errors import invariant
from meshq.wire._frames import RUN_ROW_BYTES
from meshq.wire._refusals import violation

KIND_ID: Final = 1
KIND_HEADERS: Final = 2
KIND_PROPERTIES: Final = 4
KIND_PARTS: Final = KIND_ID | KIND_HEADERS | KIND_PROPERTIES
PRIORITY_SHIFT: Final = 8
KIND_PLAIN: Final = limits.PRIORITY_DEFAULT << PRIORITY_SHIFT
_KINDS: Final = frozenset(
    parts | priority << PRIORITY_SHIFT for parts in range(8) for priority in range(limits.PRIORITY_MAX + 1)
)
_ROW_WORDS: Final = RUN_ROW_BYTES // 4

assert array("I").itemsize == 4, "the table's words are 32 bits"


class Envelope(NamedTuple):
    """What one message has besides its body."""

    kind: int
    duplicate_id: bytes
    headers: bytes
    properties: bytes


PLAIN: Final = Envelope(KIND_PLAIN, b"", b"", b"")


class RunBytes(NamedTuple):
    """A run, or a part of one: ``rows`` messages, whose ends count from ``base`` bytes before ``body``."""

    rows: int
    table: bytes
    base: int
    body: bytes | memoryview


def _words(table: bytes | memoryview) -> memoryview | array[int]:
    if sys.byteorder == "little":
        return memoryview(table).cast("I")
    words = array("I", bytes(table))  # pragma: no cover - big-endian hosts
    words.byteswap()  # pragma: no cover
    return words  # pragma: no cover


def _table(kinds: array[int], columns: Sequence[array[int]]) -> bytes:
    words = array("I", bytes(RUN_ROW_BYTES * len(kinds)))
    words[0::_ROW_WORDS] = kinds
    for number, column in enumerate(columns, 1):
        words[number::_ROW_WORDS] = column
    if sys.byteorder != "little":  # pragma: no cover - big-endian hosts
        words.byteswap()
    return words.tobytes()


def encode_run(bodies: Sequence[bytes], envelopes: Sequence[Envelope] | None = None) -> RunBytes:
    """Encode messages once, for the wire, the journal and every consumer; ``None``: all are plain."""
    count = len(bodies)
    invariant(
        0 < count <= limits.RUN_MESSAGES_MAX,
        f"a run has 1 to {limits.RUN_MESSAGES_MAX} messages, not {count}",
    )
    if envelopes is None:
        ends = array("I", accumulate(map(len, bodies)))
        starts = array("I", (0,))
        starts.extend(ends[:-1])
        return RunBytes(
            count,
            _table(array("I", (KIND_PLAIN,)) * count, (starts, starts, starts, ends)),
            0,
            b"".join(bodies),
        )
    kinds, ids, headers, properties = zip(*envelopes, strict=True)
    parts = list(chain.from_iterable(zip(ids, headers, properties, bodies, strict=True)))
    all_ends = array("I", accumulate(map(len, parts)))
    columns = (all_ends[0::4], all_ends[1::4], all_ends[2::4], all_ends[3::4])
    return RunBytes(count, _table(array("I", kinds), columns), 0, b"".join(parts))


def check_run(run: RunBytes) -> int:
    """Check the rows of a run from a peer against its body; returns all kinds' bits or-ed together.

    Raises:
        RemoteProtocolError: the rows contradict each other or the body, or a part is over its limit.
    """
    if run.rows == 0:
        raise violation("bad_table", "a run without messages")
    words = _words(run.table)
    kinds = set(words[0::_ROW_WORDS])
    if not kinds <= _KINDS:
        raise violation("bad_table", "a row has an unknown kind")
    bodies = words[4::_ROW_WORDS].tolist()
    if bodies[-1] != len(run.body):
        raise violation("bad_table", f"the rows describe {bodies[-1]} bytes, the body has {len(run.body)}")
    ids, headers, properties = (words[column::_ROW_WORDS].tolist() for column in (1, 2, 3))
    union = 0
    for kind in kinds:
        union |= kind
    starts = [0, *bodies[:-1]]
    if union & KIND_PARTS == 0:
        if not (ids == starts and headers == starts and properties == starts) or bodies != sorted(bodies):
            raise violation("bad_table", "the rows of a plain run have parts, or do not rise")
    else:
        _check_parts(words[0::_ROW_WORDS].tolist(), starts, ids, headers, properties)
        if any(map(int.__gt__, properties, bodies)):
            raise violation("bad_table", "the rows do not rise")
    if max(map(int.__sub__, bodies, properties)) > limits.MESSAGE_BYTES_MAX:
        raise violation("too_large", f"a body of more than {limits.MESSAGE_BYTES_MAX} bytes")
    return union


def _check_parts(
    kinds: list[int], starts: list[int], ids: list[int], headers: list[int], properties: list[int]
) -> None:
    id_sizes = list(map(int.__sub__, ids, starts))
    header_sizes = list(map(int.__sub__, headers, ids))
    property_sizes = list(map(int.__sub__, properties, headers))
    if min(id_sizes) < 0 or min(header_sizes) < 0 or min(property_sizes) < 0:
        raise violation("bad_table", "the rows do not rise")
    if max(id_sizes) > limits.DUPLICATE_ID_BYTES_MAX:
        raise violation("too_large", f"a duplicate id of more than {limits.DUPLICATE_ID_BYTES_MAX} bytes")
    if max(map(int.__add__, header_sizes, property_sizes)) > limits.PROPERTIES_BYTES_MAX:
        raise violation("too_large", f"properties of more than {limits.PROPERTIES_BYTES_MAX} bytes")
    found = [
        (KIND_ID if id_size else 0) | (KIND_HEADERS if header_size else 0) | (KIND_PROPERTIES if property_size else 0)
        for id_size, header_size, property_size in zip(id_sizes, header_sizes, property_sizes, strict=True)
    ]
    if found != [kind & KIND_PARTS for kind in kinds]:
        raise violation("bad_table", "a row's kind names other parts than it has")


def duplicate_ids(run: RunBytes) -> list[bytes]:
    """The duplicate id of each message, ``b""`` for one that has none."""
    words = _words(run.table)
    starts = [run.base, *words[4::_ROW_WORDS].tolist()[:-1]]
    body, base = run.body, run.base
    return [
        bytes(body[start - base : end - base]) for start, end in zip(starts, words[1::_ROW_WORDS].tolist(), strict=True)
    ]


def _end_before(run: RunBytes, index: int) -> int:
    if index == 0:
        return run.base
    return int.from_bytes(run.table[index * RUN_ROW_BYTES - 4 : index * RUN_ROW_BYTES], "little")


def cut(run: RunBytes, start: int, stop: int) -> RunBytes:
    """The messages ``start`` up to ``stop`` of a run."""
    if start == 0 and stop == run.rows:
        return run
    low, high = _end_before(run, start), _end_before(run, stop)
    return RunBytes(
        stop - start,
        run.table[start * RUN_ROW_BYTES : stop * RUN_ROW_BYTES],
        low,
        run.body[low - run.base : high - run.base],
    )


def pick(run: RunBytes, indexes: Sequence[int]) -> RunBytes:
    """Some messages of a run, in the order given, as a run of its own."""
    words = _words(run.table)
    columns = [words[column::_ROW_WORDS].tolist() for column in range(_ROW_WORDS)]
    starts = [run.base, *columns[4][:-1]]
    body, base = run.body, run.base
    pieces = []
    rows: list[int] = []
    size = 0
    for index in indexes:
        start, end = starts[index], columns[4][index]
        shift = size - start
        rows.append(columns[0][index])
        rows += [columns[column][index] + shift for column in (1, 2, 3, 4)]
        pieces.append(body[start - base : end - base])
        size = end + shift
    table = array("I", rows)
    if sys.byteorder != "little":  # pragma: no cover - big-endian hosts
        table.byteswap()
    return RunBytes(len(pieces), table.tobytes(), 0, b"".join(pieces))


def body_bytes(run: RunBytes) -> int:
    """How many bytes the run's messages have, envelopes apart."""
    return len(run.body)


class RunView:
    """Reads the parts of single messages; columns are made on first use and shared by all messages of the run."""

    __slots__ = ("_columns", "run")

    def __init__(self, run: RunBytes) -> None:
        self.run = run
        self._columns: tuple[list[int], list[int], list[int], list[int], list[int]] | None = None

    def _read(self) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
        columns = self._columns
        if columns is None:
            words = _words(self.run.table)
            base = self.run.base
            kinds, ids, headers, properties, bodies = (words[c::_ROW_WORDS].tolist() for c in range(_ROW_WORDS))
            if base:
                ids, headers, properties, bodies = (
                    [end - base for end in column] for column in (ids, headers, properties, bodies)
                )
            columns = self._columns = (kinds, ids, headers, properties, bodies)
        return columns

    def body(self, index: int) -> bytes:
        """The body of one message."""
        _, _, _, properties, bodies = self._columns or self._read()
        return bytes(self.run.body[properties[index] : bodies[index]])

    def properties(self, index: int) -> bytes:
        """The encoded properties of one message."""
        _, _, headers, properties, _ = self._columns or self._read()
        return bytes(self.run.body[headers[index] : properties[index]])

    def headers(self, index: int) -> bytes:
        """The encoded optional headers of one message."""
        _, ids, headers, _, _ = self._columns or self._read()
        return bytes(self.run.body[ids[index] : headers[index]])

    def duplicate_id(self, index: int) -> bytes:
        """The duplicate id of one message, ``b""`` if it has none."""
        _, ids, _, _, bodies = self._columns or self._read()
        return bytes(self.run.body[bodies[index - 1] if index else 0 : ids[index]])

    def priority(self, index: int) -> int:
        """The priority of one message."""
        return (self._columns or self._read())[0][index] >> PRIORITY_SHIFT

    def size(self, index: int) -> int:
        """The bytes of one message's body."""
        _, _, _, properties, bodies = self._columns or self._read()
        return bodies[index] - properties[index]
