"""A run of messages as bytes: a table of envelopes, and one region with the parts that they describe.

Each row has five little-endian u32: the kind, and where the message's duplicate id, headers, properties and body
end.  The ends count from the beginning of the run and rise all the way, so a slice of a run is two slices of
bytes, and a whole column is one slice of a typed view.  Kind: bits 0-2 say which of the optional parts a message
has, bit 4 that its headers have something by which the broker acts, bits 8-11 its priority; the others are 0.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from struct import Struct
from typing import Final, NamedTuple

from meshq import limits
from meshq.errors import invariant
from meshq.wire._frames import RUN_ROW_BYTES

KIND_ID: Final = 1
KIND_HEADERS: Final = 2
KIND_PROPERTIES: Final = 4
KIND_PARTS: Final = KIND_ID | KIND_HEADERS | KIND_PROPERTIES
#: In the answer of ``check_run`` only: some message has another priority than the default.
KIND_PRIORITY: Final = 8
#: The headers name a time to live, a delay or a group: the broker has to read them.
KIND_CONTROL: Final = 16
#: The key of the headers that says that a bridge has sent the message, and in the place of its duplicate id stands the
#: bridge's; the value is the sender's, ``b""`` if there is none.
HEADER_BRIDGED: Final = "b"
#: The key of the headers with the path of the message through a network of brokers.
HEADER_PATH: Final = "p"
PRIORITY_SHIFT: Final = 8
KIND_PLAIN: Final = limits.PRIORITY_DEFAULT << PRIORITY_SHIFT
_ROW_WORDS: Final = RUN_ROW_BYTES // 4
_ROW: Final = Struct("<5I")

#: A row of which each end is 1.
_ONE_ROW: Final = _ROW.pack(0, 1, 1, 1, 1)

assert array("I").itemsize == 4, "the table's words are 32 bits"


class Envelope(NamedTuple):
    """The parts of one message beside its body."""

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
        return encode_bodies(array("I", accumulate(map(len, bodies))), b"".join(bodies))
    kinds, ids, headers, properties = zip(*envelopes, strict=True)
    parts = list(chain.from_iterable(zip(ids, headers, properties, bodies, strict=True)))
    all_ends = array("I", accumulate(map(len, parts)))
    columns = (all_ends[0::4], all_ends[1::4], all_ends[2::4], all_ends[3::4])
    return RunBytes(count, _table(array("I", kinds), columns), 0, b"".join(parts))


def encode_bodies(ends: array[int], body: bytes) -> RunBytes:
    """Encode plain messages whose bodies lie side by side, each up to one of ``ends``."""
    count = len(ends)
    starts = array("I", (0,))
    starts.extend(ends[:-1])
    return RunBytes(count, _table(array("I", (KIND_PLAIN,)) * count, (starts, starts, starts, ends)), 0, body)


def encode_columns(kinds: bytes, ends: Sequence[bytes], base: int, body: bytes) -> RunBytes:
    """Encode messages whose parts lie side by side; the columns of the table are given, as numbers of this machine.

    ``ends``: of duplicate id, headers, properties and body, counted from ``base`` bytes before ``body``.
    """
    table = _table(array("I", kinds), [array("I", column) for column in ends])
    if base:
        # As in ``pick``: what comes out is an end again in each word, so nothing is carried from word to word.
        moved = int.from_bytes(table, "little") - base * int.from_bytes(_ONE_ROW * (len(kinds) // 4), "little")
        table = moved.to_bytes(len(table), "little")
    return RunBytes(len(kinds) // 4, table, 0, body)


def encode_one(body: bytes, envelope: Envelope | tuple[int, bytes, bytes, bytes] = PLAIN) -> RunBytes:
    """Encode a run of one message, in a fraction of the time of ``encode_run``."""
    kind, duplicate_id, headers, properties = envelope
    if not kind & KIND_PARTS:
        return RunBytes(1, _ROW.pack(kind, 0, 0, 0, len(body)), 0, body)
    id_end = len(duplicate_id)
    headers_end = id_end + len(headers)
    properties_end = headers_end + len(properties)
    table = _ROW.pack(kind, id_end, headers_end, properties_end, properties_end + len(body))
    return RunBytes(1, table, 0, b"".join((duplicate_id, headers, properties, body)))


def with_body(run: RunBytes, body: bytes) -> RunBytes:
    """Add the body to a run of one message without a body."""
    kind, id_end, headers_end, start, end = _ROW.unpack(run.table)
    invariant(start == end, "the message has no body")
    table = _ROW.pack(kind, id_end, headers_end, start, start + len(body))
    return RunBytes(1, table, run.base, b"".join((run.body, body)))


def without_body(run: RunBytes) -> tuple[RunBytes, bytes]:
    """Take the body from a run of one message; return the run without the body, and the body."""
    kind, id_end, headers_end, start, end = _ROW.unpack(run.table)
    data = bytes(run.body)
    table = _ROW.pack(kind, id_end, headers_end, start, start)
    return RunBytes(1, table, run.base, data[: start - run.base]), data[start - run.base : end - run.base]


def body_sizes(run: RunBytes) -> list[int]:
    """Return the bytes of the body of each message."""
    words = _words(run.table)
    starts, ends = words[3::_ROW_WORDS].tolist(), words[4::_ROW_WORDS].tolist()
    return [end - start for start, end in zip(starts, ends, strict=True)]


def _bounds(run: RunBytes) -> tuple[list[int], list[int]]:
    """Return the start and the end of each message in the run's own body."""
    ends = _words(run.table)[4::_ROW_WORDS].tolist()
    base = run.base
    if base:
        ends = [end - base for end in ends]
    return [0, *ends[:-1]], ends


def duplicate_ids(run: RunBytes) -> list[bytes]:
    """Return the duplicate id of each message, ``b""`` for a message without one."""
    starts, _ = _bounds(run)
    ends = _words(run.table)[1::_ROW_WORDS].tolist()
    base = run.base
    if base:
        ends = [end - base for end in ends]
    # One copy of a view is cheaper than one of each slice.
    body = run.body if type(run.body) is bytes else bytes(run.body)
    return [body[start:end] for start, end in zip(starts, ends, strict=True)]


def has_ids(table: bytes) -> bool:
    """Whether any message of a whole run has a duplicate id."""
    words = _words(table)
    return words[1::_ROW_WORDS].tolist() != [0, *words[4::_ROW_WORDS].tolist()[:-1]]


def _end_before(run: RunBytes, index: int) -> int:
    if index == 0:
        return run.base
    return int.from_bytes(run.table[index * RUN_ROW_BYTES - 4 : index * RUN_ROW_BYTES], "little")


def cut(run: RunBytes, start: int, stop: int) -> RunBytes:
    """Return the messages ``start`` up to ``stop`` of a run."""
    invariant(0 <= start < stop <= run.rows, f"a part of a run has messages of it: {start} to {stop} of {run.rows}")
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
    """Return some messages of a run, in the order given, as a run of its own."""
    invariant(len(indexes) > 0, "a part of a run has messages of it")
    all_starts, all_ends = _bounds(run)
    starts = [all_starts[index] for index in indexes]
    ends = [all_ends[index] for index in indexes]
    table, base, body = run.table, run.base, run.body
    rows = b"".join([table[index * RUN_ROW_BYTES : (index + 1) * RUN_ROW_BYTES] for index in indexes])
    new_ends = list(accumulate(map(int.__sub__, ends, starts)))
    new_starts = [0, *new_ends[:-1]]
    # All the ends of a row move by the same amount.  As one integer the table is moved in one subtraction and one
    # addition; what comes out of it is an end again in each word, so nothing is carried from word to word.
    moved = int.from_bytes(rows, "little") - _spread([start + base for start in starts]) + _spread(new_starts)
    return RunBytes(
        len(indexes),
        moved.to_bytes(len(rows), "little"),
        0,
        b"".join([body[start:end] for start, end in zip(starts, ends, strict=True)]),
    )


def _spread(amounts: list[int]) -> int:
    """Return a table, as one integer, that has each amount in all the ends of a row."""
    column = array("I", amounts)
    words = array("I", bytes(RUN_ROW_BYTES * len(amounts)))
    for word in range(1, _ROW_WORDS):
        words[word::_ROW_WORDS] = column
    if sys.byteorder != "little":  # pragma: no cover - big-endian hosts
        words.byteswap()
    return int.from_bytes(words, "little")


def _from_base(column: memoryview | array[int], base: int) -> list[int]:
    ends: list[int] = column.tolist()
    return [end - base for end in ends] if base else ends


class RunView:
    """A reader of single messages; columns are made on first use and shared by all messages of the run."""

    __slots__ = ("_columns", "data", "ends", "run", "starts")

    def __init__(self, run: RunBytes) -> None:
        self.run: RunBytes = run
        self._columns: tuple[list[int], list[int], list[int], list[int], list[int]] | None = None
        #: The run's bytes and the bodies' bounds in them, once ``read_bodies`` was called: a consumer reads nothing
        #: else of most messages, and reads it without another call.
        self.data: bytes = b""
        self.starts: list[int] = []
        self.ends: list[int] = []

    def read_bodies(self) -> None:
        """Find the bodies.

        ``ends`` is what says that it is done, so it comes last: several threads may read one run.
        """
        rows, table, base, body = self.run
        self.data = bytes(body)
        if rows == 1:
            _, _, _, start, end = _ROW.unpack(table)
            self.starts, self.ends = [start - base], [end - base]
        else:
            words = _words(table)
            self.starts, self.ends = _from_base(words[3::_ROW_WORDS], base), _from_base(words[4::_ROW_WORDS], base)

    def body_offsets(self, start: int, end: int) -> bytes | None:
        """Where the bodies of some messages begin in the run's bytes, and behind these where the last one ends.

        As u32 of this machine.  None where something stands between two bodies.
        """
        words, base = _words(self.run.table), self.run.base
        starts, ends = words[3::_ROW_WORDS][start:end].tobytes(), words[4::_ROW_WORDS][start:end].tobytes()
        if starts[4:] != ends[:-4]:
            return None
        offsets = starts[:4] + ends
        return array("I", _from_base(memoryview(offsets).cast("I"), base)).tobytes() if base else offsets

    def _read(self) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
        columns = self._columns
        if columns is None:
            if not self.ends:
                self.read_bodies()
            words, base = _words(self.run.table), self.run.base
            kinds, ids, headers = (words[column::_ROW_WORDS] for column in range(3))
            columns = (kinds.tolist(), _from_base(ids, base), _from_base(headers, base), self.starts, self.ends)
            self._columns = columns
        return columns

    def body(self, index: int) -> bytes:
        """The body of one message."""
        if not self.ends:
            self.read_bodies()
        return self.data[self.starts[index] : self.ends[index]]

    def properties(self, index: int) -> bytes:
        """The encoded properties of one message."""
        _, _, headers, properties, _ = self._columns or self._read()
        return bytes(self.run.body[headers[index] : properties[index]])

    def _kinds_among(self, start: int, end: int) -> dict[int, None]:
        """The kinds of some messages, each once; without the other columns, which are made when one is asked for."""
        kinds = self._columns[0] if self._columns else _words(self.run.table)[0::_ROW_WORDS].tolist()
        return dict.fromkeys(kinds[start:end])

    def has_properties(self, start: int, end: int) -> bool:
        """Whether any of some messages has properties."""
        return any(kind & KIND_PROPERTIES for kind in self._kinds_among(start, end))

    def has_headers(self, start: int, end: int) -> bool:
        """Whether any of some messages has optional headers, or a duplicate id."""
        return any(kind & (KIND_HEADERS | KIND_ID) for kind in self._kinds_among(start, end))

    def has_ids(self) -> bool:
        """Whether any message of the run has a duplicate id."""
        return any(kind & KIND_ID for kind in self.common_kinds())

    def common_kinds(self) -> Iterable[int]:
        """The kinds of all messages, each once, in the order of their first messages."""
        return self._kinds_among(0, self.run.rows)

    def common_priority(self, start: int, end: int) -> int | None:
        """The priority of some messages; None: they have several."""
        found = {kind >> PRIORITY_SHIFT for kind in self._kinds_among(start, end)}
        return found.pop() if len(found) == 1 else None

    def headers(self, index: int) -> bytes:
        """The encoded optional headers of one message."""
        _, ids, headers, _, _ = self._columns or self._read()
        return bytes(self.run.body[ids[index] : headers[index]])

    def headers_between(self, start: int, end: int) -> list[bytes]:
        """The encoded optional headers of some messages, in order."""
        _, ids, headers, _, _ = self._columns or self._read()
        data = self.data
        return [data[low:high] for low, high in zip(ids[start:end], headers[start:end], strict=True)]

    def attached(self, index: int) -> int:
        """The bytes of one message's optional headers and properties."""
        _, ids, _, properties, _ = self._columns or self._read()
        return properties[index] - ids[index]

    def duplicate_id(self, index: int) -> bytes:
        """The duplicate id of one message, ``b""`` without one."""
        _, ids, _, _, bodies = self._columns or self._read()
        return bytes(self.run.body[bodies[index - 1] if index else 0 : ids[index]])

    def kinds(self) -> list[int]:
        """The kinds of all messages, in order; not to be changed."""
        return (self._columns or self._read())[0]

    def kind(self, index: int) -> int:
        """The kind of one message: which parts it has."""
        return (self._columns or self._read())[0][index]

    def priority(self, index: int) -> int:
        """The priority of one message."""
        return (self._columns or self._read())[0][index] >> PRIORITY_SHIFT

    def size(self, index: int) -> int:
        """The bytes of one message's body."""
        _, _, _, properties, bodies = self._columns or self._read()
        return bodies[index] - properties[index]
