"""Encoding of rows to send: the parts of messages are made column by column, by Arrow, without a loop over rows.

A property and an optional header are a name and a value in msgpack: a few bytes that say kind and length, then the
bytes.  The length says which few bytes, so a column is encoded by taking these from a short table, and joining two
columns byte by byte; the parts of a message are joined in the same way, and their ends are sums of columns.
What this can't do, or what can't be sent, is left to whoever looks at each row, and knows which one it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from meshq import limits
from meshq.address import parse_place
from meshq.client import KindBits, RowColumns
from meshq.errors import SettingsError
from meshq.message import check_properties
from meshq.spark._properties_format import KEY

#: The columns that are encoded here; a batch with another one is read row by row.
COLUMNS: Final = frozenset(
    {"value", "key", "topic", "headers", "priority", "group_id", "duplicate_id", "correlation_id", "content_type"}
)
#: The columns that are optional headers, in the order in which these are encoded; and their names there.
_HEADERS: Final = {"group_id": "g", "correlation_id": "c", "content_type": "t"}
#: The bytes of the longest name or value, the properties of a message, and the addresses of a batch.
_SIZE_MAX: Final = 4_096
_ITEMS_MAX: Final = 15
_TOPICS_MAX: Final = 64
_NULL: Final = b"\xc0"
_EMPTY: Final = pa.scalar(b"", pa.binary())


def _prefix(size: int, *, text: bool) -> bytes:
    """Return the msgpack prefix of text or bytes of a given size."""
    if text and size < 32:
        return bytes((0xA0 | size,))
    if size < 256:
        return bytes((0xD9 if text else 0xC4, size))
    return bytes((0xDA if text else 0xC5,)) + size.to_bytes(2, "big")


_TEXT: Final = pa.array([_prefix(size, text=True) for size in range(_SIZE_MAX + 1)], pa.binary())
_BYTES: Final = pa.array([_prefix(size, text=False) for size in range(_SIZE_MAX + 1)], pa.binary())
_MAPS: Final = pa.array([b"", *(bytes((0x80 | count,)) for count in range(1, _ITEMS_MAX + 1))], pa.binary())


class _RowsNeededError(Exception):
    """The rows have to be read one by one."""


def columns_to_send(batch: Any, topic: str | None) -> list[RowColumns] | None:
    """The rows of a record batch, for each address in their order; None: they have to be read one by one."""
    names = batch.schema.names
    if not COLUMNS.issuperset(names) or not batch.num_rows:
        return None
    try:
        return [_encoded(part, address) for address, part in _by_address(batch, topic)]
    except (_RowsNeededError, pa.ArrowException, UnicodeDecodeError):
        # Arrow can't join what passes 2 GiB together, either.
        return None


def _by_address(batch: Any, topic: str | None) -> Iterator[tuple[str, Any]]:
    if topic is not None or "topic" not in batch.schema.names:
        addresses: list[Any] = [topic]
    else:
        addresses = batch.column("topic").unique().to_pylist()
    if len(addresses) > _TOPICS_MAX or None in addresses:
        raise _RowsNeededError
    for address in addresses:
        try:
            parse_place(address)
        except SettingsError:
            raise _RowsNeededError from None
    for address in addresses:
        yield address, batch if len(addresses) == 1 else batch.filter(pc.equal(batch.column("topic"), address))


def _encoded(batch: Any, address: str) -> RowColumns:
    """The columns of messages for one address."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    bodies = _plain(columns["value"], limits.MESSAGE_BYTES_MAX)
    if bodies.null_count:
        raise _RowsNeededError
    count = len(bodies)
    kinds, ids = _priorities(columns.get("priority"), count), None
    if "duplicate_id" in columns:
        ids = _name(columns["duplicate_id"], limits.DUPLICATE_ID_BYTES_MAX)
        kinds = _marked(kinds, _present(ids), KindBits.ID)
    headers = _headers_of(columns, count)
    properties = _properties_of(columns, count)
    if headers is not None:
        kinds = _marked(kinds, _present(headers), KindBits.HEADERS)
    if "group_id" in columns:
        kinds = _marked(kinds, pc.is_valid(columns["group_id"]), KindBits.CONTROL)
    if properties is not None:
        kinds = _marked(kinds, _present(properties), KindBits.PROPERTIES)
    return _side_by_side(address, kinds, (ids, headers, properties), bodies)


def _side_by_side(address: str, kinds: Any, parts: tuple[Any, Any, Any], bodies: Any) -> RowColumns:
    given = [pc.fill_null(part, _EMPTY) for part in parts if part is not None]
    whole = pc.binary_join_element_wise(*given, bodies, _EMPTY) if given else bodies
    _, offsets, data = whole.buffers()
    marks = pa.Array.from_buffers(pa.int32(), len(whole) + 1, [None, offsets], offset=whole.offset)
    end, ends = marks.slice(0, len(whole)), []
    sizes = iter(map(pc.binary_length, given))
    for part in parts:
        end = pc.add(end, next(sizes)) if part is not None else end
        ends.append(end)
    attached = pc.max(pc.subtract(ends[2], ends[0])).as_py()
    if attached > limits.PROPERTIES_BYTES_MAX:
        raise _RowsNeededError
    words = [_words(one) for one in (kinds, *ends, marks.slice(1))]
    data = memoryview(b"" if data is None else data)
    return RowColumns(address, len(whole), words[0], tuple(words[1:]), data, marks[0].as_py())


def _words(column: Any) -> memoryview:
    """The numbers of a column, each of four bytes."""
    return memoryview(column.buffers()[1]).cast("B").cast("I")[column.offset : column.offset + len(column)]


def _plain(column: Any, size_max: int) -> Any:
    """A column of bytes or text as bytes.

    Raises:
        _RowsNeededError: something there is too large, or of another type.
    """
    if column.type == pa.string():
        # Text that is none has to be found here: nobody reads it.
        column.validate(full=True)
        column = column.cast(pa.binary())
    if column.type != pa.binary():
        raise _RowsNeededError
    if (pc.max(pc.binary_length(column)).as_py() or 0) > size_max:
        raise _RowsNeededError
    return column


def _name(column: Any, size_max: int) -> Any:
    """As ``_plain``, where nothing that is there may be empty."""
    plain = _plain(column, size_max)
    if pc.min(pc.binary_length(plain)).as_py() == 0:
        raise _RowsNeededError
    return plain


def _present(column: Any) -> Any:
    """Which rows of an encoded column have something."""
    return pc.greater(pc.fill_null(pc.binary_length(column), 0), 0)


def _marked(kinds: Any, rows: Any, bit: int) -> Any:
    """The kinds, with a bit of those rows."""
    return pc.bit_wise_or(kinds, pc.multiply(rows.cast(pa.uint32()), pa.scalar(bit, pa.uint32())))


def _priorities(column: Any, count: int) -> Any:
    """The kinds of messages that have nothing but a priority."""
    if column is None:
        return pa.repeat(pa.scalar(limits.PRIORITY_DEFAULT << KindBits.PRIORITY_SHIFT, pa.uint32()), count)
    found = pc.fill_null(column, pa.scalar(limits.PRIORITY_DEFAULT, column.type))
    if pc.min(found).as_py() < 0 or pc.max(found).as_py() > limits.PRIORITY_MAX:
        raise _RowsNeededError
    return pc.shift_left(found.cast(pa.uint32()), pa.scalar(KindBits.PRIORITY_SHIFT, pa.uint32()))


def _valued(column: Any) -> Any:
    """Text or bytes as msgpack has it; NULL stays so."""
    plain = _plain(column, _SIZE_MAX)
    table = _TEXT if column.type == pa.string() else _BYTES
    return pc.binary_join_element_wise(table.take(pc.binary_length(plain)), plain, _EMPTY)


def _named(name: str, column: Any) -> Any:
    """Name and value of one entry of a map in each row, NULL where there is none."""
    said = name.encode()
    return pc.binary_join_element_wise(
        pa.scalar(_prefix(len(said), text=True) + said, pa.binary()), _valued(column), _EMPTY
    )


def _map_of(counts: Any, entries: list[Any]) -> Any:
    """Maps of some entries, with nothing where there are none."""
    if pc.max(counts).as_py() > _ITEMS_MAX:
        raise _RowsNeededError
    return pc.binary_join_element_wise(_MAPS.take(counts), *(pc.fill_null(one, _EMPTY) for one in entries), _EMPTY)


def _headers_of(columns: dict[str, Any], count: int) -> Any:
    """The optional headers; None: there is no column for one."""
    given = {name: columns[name] for name in _HEADERS if name in columns}
    if not given:
        return None
    if "group_id" in given:
        _name(given["group_id"], limits.GROUP_BYTES_MAX)
    counts = pa.repeat(pa.scalar(0, pa.int32()), count)
    for column in given.values():
        counts = pc.add(counts, pc.is_valid(column).cast(pa.int32()))
    return _map_of(counts, [_named(_HEADERS[name], column) for name, column in given.items()])


def _properties_of(columns: dict[str, Any], count: int) -> Any:
    """The properties; None: there is no column for one."""
    key, headers = columns.get("key"), columns.get("headers")
    if key is None and headers is None:
        return None
    counts = pa.repeat(pa.scalar(0, pa.int32()), count)
    entries = []
    if key is not None:
        counts = pc.add(counts, pc.is_valid(key).cast(pa.int32()))
        entries.append(_named(KEY, key))
    if headers is not None:
        sizes = pc.fill_null(pc.list_value_length(headers), 0)
        counts = pc.add(counts, sizes)
        entries.append(_listed(headers, sizes, key is not None))
    return _map_of(counts, entries)


def _listed(headers: Any, sizes: Any, keyed: bool) -> Any:
    """Names and values of the headers of each row."""
    flat = pc.list_flatten(headers)
    names, values = pc.struct_field(flat, 0), pc.struct_field(flat, 1)
    if flat.null_count or names.null_count or flat.type.field(0).name != "key":
        raise _RowsNeededError
    said = _valued(names)
    _check_names(names, pc.list_parent_indices(headers), keyed)
    entry = pc.binary_join_element_wise(said, pc.fill_null(_valued(values), _NULL), _EMPTY)
    marks = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(sizes.cast(pa.int32()))])
    return pc.binary_join(pa.ListArray.from_arrays(marks, entry), _EMPTY)


def _check_names(names: Any, rows: Any, keyed: bool) -> None:
    """See that these are names of properties, each once in a row; ``keyed``: rows may have a key."""
    different = names.unique().to_pylist()
    try:
        check_properties(dict.fromkeys(different))
    except SettingsError:
        raise _RowsNeededError from None
    if keyed and KEY in different:
        raise _RowsNeededError
    if pc.count_distinct(rows).as_py() < len(rows):
        # Some row has more than one.
        table = pa.table({"row": rows, "name": names})
        if table.group_by(["row", "name"]).aggregate([]).num_rows != len(rows):
            raise _RowsNeededError
