"""Messages as record batches of Arrow, and back."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from meshq import limits
from meshq.blocking.connector import RunPart
from meshq.client import DeliveredRun, ReceivedMessage
from meshq.errors import SettingsError
from meshq.message import PropertyValue
from meshq.spark._properties_format import as_bytes, as_text, key_bytes, merged, shown_without_key

#: Rows and bytes of a record batch, about.
_BATCH_ROWS: Final = 8_192
_BATCH_BYTES: Final = 8 << 20


class PartitionFacts(NamedTuple):
    """The constant columns of a partition."""

    queue: str
    ordinal: int
    node: str


def side_by_side(count: int, offsets: bytes, body: bytes | memoryview) -> Any:
    """Return bodies that lie side by side as an array, which begins at its first body.

    Where the first offset is not 0, some versions of Arrow write the array wrongly when it goes to Spark.
    """
    marks = pa.Array.from_buffers(pa.uint32(), count + 1, [None, pa.py_buffer(offsets)])
    first, last = marks[0].as_py(), marks[count].as_py()
    if first:
        marks = pc.subtract(marks, marks[0])
    data = pa.py_buffer(body).slice(first, last - first)
    return pa.Array.from_buffers(pa.binary(), count, [None, marks.buffers()[1], data])


def by_reference(body: bytes) -> Any:
    """Return one body as an array over its own bytes: a large one is not copied on its way to Spark."""
    marks = pa.py_buffer(array("i", (0, len(body))))
    return pa.Array.from_buffers(pa.binary(), 1, [None, marks, pa.py_buffer(body)])


class _Rows:
    """The rows of a part of a run, column by column; nothing is decoded that no column asks for."""

    def __init__(self, part: RunPart, facts: PartitionFacts) -> None:
        self.run: DeliveredRun = part.run
        self.start, self.end = part.start, part.end
        self.count: int = part.end - part.start
        self.facts: PartitionFacts = facts
        self._properties: list[dict[str, PropertyValue]] | None = None

    def messages(self) -> list[ReceivedMessage]:
        """Return the messages, for columns that are rarely asked for."""
        return [ReceivedMessage(self.run, index) for index in range(self.start, self.end)]

    def properties(self) -> list[dict[str, PropertyValue]]:
        """The properties of all rows, decoded once."""
        if self._properties is None:
            self._properties = [message.properties for message in self.messages()]
        return self._properties

    def same(self, value: Any, kind: Any) -> Any:
        """A column with one value."""
        return pa.repeat(pa.scalar(value, kind), self.count)

    def values(self) -> Any:
        """The bodies: one buffer where nothing stands between them, and no Python object a row."""
        view = self.run.view
        large = self.run.large
        if large is not None:
            if large.size > limits.MESSAGE_BYTES_MAX:
                header, facts = self.run.header, self.facts
                text = f"the body of message {header.sequence} of {facts.queue}@{facts.node} has {large.size} bytes"
                raise SettingsError(
                    "value", None, f"bodies of at most {limits.MESSAGE_BYTES_MAX} bytes", shown=f"<{text}>"
                )
            return by_reference(self.messages()[0].body)
        offsets = view.body_offsets(self.start, self.end)
        if offsets is not None:
            return side_by_side(self.count, offsets, view.run.body)
        if not view.ends:
            view.read_bodies()
        starts, ends = view.starts[self.start : self.end], view.ends[self.start : self.end]
        data = view.data
        return pa.array([data[lo:hi] for lo, hi in zip(starts, ends, strict=True)], pa.binary())

    def has_properties(self) -> bool:
        """Whether any of these messages has properties."""
        return self.run.view.has_properties(self.start, self.end)

    def keys(self) -> Any:
        """The keys."""
        if not self.has_properties():
            return pa.nulls(self.count, pa.binary())
        return pa.array([key_bytes(properties) for properties in self.properties()], pa.binary())

    def offsets(self) -> Any:
        """The sequences."""
        header = self.run.header
        first = header.sequence + self.start * header.step
        numbers = array("q", range(first, first + self.count * header.step, header.step))
        return pa.Array.from_buffers(pa.int64(), self.count, [None, pa.py_buffer(numbers)])

    def times(self, kind: Any) -> Any:
        """When the messages came to their first broker, or were sent where that is not known."""
        stamp = self.run.header.arrival or self.run.stamp_ms
        return self.same(stamp * 1_000, pa.int64()).cast(kind)

    def headers(self, kind: Any) -> Any:
        """The properties as headers."""
        return pa.array(
            [
                [{"key": name, "value": as_bytes(value)} for name, value in shown_without_key(properties)]
                for properties in self.properties()
            ],
            kind,
        )

    def texts(self, kind: Any) -> Any:
        """The properties as texts."""
        return pa.array(
            [[(name, as_text(value)) for name, value in shown_without_key(one)] for one in self.properties()], kind
        )

    def expirations(self, kind: Any) -> Any:
        """When the messages expire."""
        times = [message.expiration for message in self.messages()]
        return pa.array([None if time is None else round(time * 1_000_000) for time in times], pa.int64()).cast(kind)

    def each(self, read: Callable[[ReceivedMessage], object], kind: Any) -> Any:
        """A column that is read message by message."""
        return pa.array([read(message) for message in self.messages()], kind)


#: The columns: from the rows and the type that Spark wants.
_COLUMNS: Final[dict[str, Callable[[_Rows, Any], Any]]] = {
    "key": lambda rows, kind: rows.keys(),
    "value": lambda rows, kind: rows.values(),
    "topic": lambda rows, kind: rows.same(rows.facts.queue, kind),
    "partition": lambda rows, kind: rows.same(rows.facts.ordinal, kind),
    "offset": lambda rows, kind: rows.offsets(),
    "timestamp": lambda rows, kind: rows.times(kind),
    "headers": lambda rows, kind: rows.headers(kind),
    "node": lambda rows, kind: rows.same(rows.facts.node, kind),
    "message_id": lambda rows, kind: rows.each(lambda message: str(message.message_id), kind),
    "delivery_count": lambda rows, kind: rows.same(0, kind),
    "priority": lambda rows, kind: rows.each(lambda message: message.priority, kind),
    "expiration": lambda rows, kind: rows.expirations(kind),
    "correlation_id": lambda rows, kind: rows.each(lambda message: message.correlation_id, kind),
    "reply_to": lambda rows, kind: rows.each(lambda message: message.reply_to, kind),
    "content_type": lambda rows, kind: rows.each(lambda message: message.content_type, kind),
    "duplicate_id": lambda rows, kind: rows.each(lambda message: message.duplicate_id, kind),
    "group_id": lambda rows, kind: rows.each(lambda message: message.group, kind),
    "durable": lambda rows, kind: rows.same(rows.run.durable, kind),
    "properties": lambda rows, kind: rows.texts(kind),
}


class BatchBuilder:
    """Gathers runs into record batches of a schema."""

    def __init__(self, schema: Any, facts: PartitionFacts) -> None:
        self._schema = schema
        self._facts = facts
        self._makers = [(_COLUMNS[field.name], field.type) for field in schema]
        # Batches that are joined into one; a large body is one of its own, since to join is to copy.
        self._parts: list[list[Any]] = []
        self._joining = False
        self._rows = self._bytes = 0

    def add(self, part: RunPart) -> None:
        """Add messages."""
        rows = _Rows(part, self._facts)
        if not self._makers:
            # A count asks for no column.
            batch = pa.RecordBatch.from_struct_array(pa.array([{}] * rows.count, pa.struct([])))
        else:
            arrays = [make(rows, kind) for make, kind in self._makers]
            batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        joins = rows.run.large is None
        if joins and self._joining:
            self._parts[-1].append(batch)
        else:
            self._parts.append([batch])
        self._joining = joins
        self._rows += rows.count
        large, run = part.run.large, part.run.view.run
        self._bytes += len(run.body) * rows.count // run.rows if large is None else large.size

    @property
    def full(self) -> bool:
        """Whether a batch is worth its way."""
        return self._rows >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES

    def take(self) -> Iterator[Any]:
        """The gathered rows, in order, in as few batches as large bodies allow; nothing if there are none."""
        parts, self._parts, self._joining = self._parts, [], False
        self._rows = self._bytes = 0
        for one in parts:
            if len(one) == 1:
                yield one[0]
            else:
                yield from pa.Table.from_batches(one).combine_chunks().to_batches()


class OutgoingRow(NamedTuple):
    """A row to send: its address, its body, and the keywords of its send."""

    address: str
    body: bytes
    about: dict[str, Any]


#: Columns that are keywords of a send under another name.
_KEYWORDS: Final = {
    "priority": "priority",
    "durable": "durable",
    "group_id": "group",
    "duplicate_id": "duplicate_id",
    "correlation_id": "correlation_id",
    "reply_to": "reply_to",
    "content_type": "content_type",
}
_SPANS: Final = {"ttl_ms": "ttl", "delay_ms": "delay"}
_PROPERTIES: Final = ("key", "headers", "properties")


class Bodies(NamedTuple):
    """Rows with nothing but a body, for one address; ``offsets`` as Arrow has them, counted from ``data``."""

    address: str
    offsets: memoryview
    data: memoryview

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.offsets) - 1


class RowReader:
    """Reads rows to send from record batches, and counts them."""

    def __init__(self, topic: str | None, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._row = 0

    def bodies(self, batch: Any) -> Bodies | None:
        """The rows of a batch as columns, where these are all that is to be sent; None: they are read one by one."""
        if self._topic is None or batch.schema.names != ["value"] or not batch.num_rows:
            return None
        column = batch.column("value")
        if column.null_count or column.type not in (pa.binary(), pa.string()):
            return None
        _, offsets, data = column.buffers()
        whole = memoryview(offsets).cast("i")[column.offset : column.offset + len(column) + 1]
        if max(map(int.__sub__, whole[1:], whole[:-1])) > limits.MESSAGE_BYTES_MAX:
            # Whoever reads it alone can say which row it is.
            return None
        self._row += len(column)
        return Bodies(self._topic, whole, memoryview(b"" if data is None else data))

    def rows(self, batch: Any) -> Iterator[OutgoingRow]:
        """The rows of a batch.

        Raises:
            SettingsError: a row can't be sent; names the column, the partition and the row.
        """
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        values: Sequence[Any] = columns.pop("value")
        topics: Iterable[str | None] = columns.pop("topic", None) or ()
        if self._topic is not None:
            topics = [self._topic] * len(values)
        for index, (body, topic) in enumerate(zip(values, topics, strict=True)):
            if body is None or topic is None:
                raise self._error("value" if body is None else "topic", "a value: NULL can't be sent")
            data = body.encode() if type(body) is str else body
            yield OutgoingRow(topic, data, self._about(columns, index) if columns else {})
            self._row += 1

    def _about(self, columns: dict[str, list[Any]], index: int) -> dict[str, Any]:
        about: dict[str, Any] = {}
        for name, values in columns.items():
            value = values[index]
            if value is None or name in _PROPERTIES:
                continue
            if name in _SPANS:
                about[_SPANS[name]] = value / 1_000
            else:
                about[_KEYWORDS[name]] = value
        if any(name in columns for name in _PROPERTIES):
            key, headers, properties = (columns[name][index] if name in columns else None for name in _PROPERTIES)
            try:
                about["properties"] = merged(key, headers, properties)
            except SettingsError as error:
                raise self.placed(error) from None
        return about

    def _error(self, column: str, allowed: str) -> SettingsError:
        where = f"column {column!r} (partition {self._partition}, row {self._row})"
        return SettingsError(where, None, allowed)

    def placed(self, error: SettingsError) -> SettingsError:
        """The error of a row, with its place."""
        setting = "column 'value'" if error.setting == "body" else error.setting
        where = f"{setting} (partition {self._partition}, row {self._row})"
        return SettingsError(where, None, error.allowed, shown=error.shown if error.shown is not None else "...")
