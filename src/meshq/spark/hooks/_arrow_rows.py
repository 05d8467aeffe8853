"""Messages as record batches of Arrow, and back."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from meshq import limits
from meshq.blocking.connector import RunPart
from meshq.client import DeliveredRun, ReceivedMessage, RowColumns
from meshq.concurrency import copied_error
from meshq.errors import SettingsError
from meshq.message import PropertyValue
from meshq.spark._properties_format import as_bytes, as_text, key_bytes, merged, shown_without_key
from meshq.spark.hooks._arrow_runs import columns_to_send

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
    """The rows of a part of a run; nothing is decoded that no column asks for."""

    def __init__(self, part: RunPart) -> None:
        self.run: DeliveredRun = part.run
        self.start, self.end = part.start, part.end
        self.count: int = part.end - part.start
        self._properties: list[dict[str, PropertyValue]] | None = None
        # Whether any has properties, whether any has optional headers, and the priority, if all have one.
        self._kinds: tuple[bool, bool, int | None] | None = None

    @property
    def size(self) -> int:
        """The bytes of the bodies, about."""
        large, run = self.run.large, self.run.view.run
        return len(run.body) * self.count // run.rows if large is None else large.size

    def check_body(self) -> None:
        """Raise why a large body did not come, if it did not."""
        if self.run.large is not None and self.run.large.trouble is not None:
            raise copied_error(self.run.large.trouble)

    def messages(self) -> list[ReceivedMessage]:
        """Return the messages, for columns that are rarely asked for."""
        return [ReceivedMessage(self.run, index) for index in range(self.start, self.end)]

    def properties(self) -> list[dict[str, PropertyValue]]:
        """The properties of all rows, decoded once."""
        if self._properties is None:
            self._properties = [message.properties for message in self.messages()]
        return self._properties

    def values(self, facts: PartitionFacts) -> Any:
        """The bodies: one buffer where nothing stands between them, and no Python object a row."""
        view = self.run.view
        large = self.run.large
        if large is not None:
            if large.size > limits.MESSAGE_BYTES_MAX:
                sequence = self.run.header.sequence
                text = f"the body of message {sequence} of {facts.queue}@{facts.node} has {large.size} bytes"
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
        return self._known()[0]

    def has_headers(self) -> bool:
        """Whether any of these messages has optional headers, or a duplicate id."""
        return self._known()[1]

    def priority(self) -> int | None:
        """The priority of these messages; None: they have several."""
        return self._known()[2]

    def _known(self) -> tuple[bool, bool, int | None]:
        """Return whether messages have properties, whether they have optional headers, and their common priority."""
        if self._kinds is None:
            view, start, end = self.run.view, self.start, self.end
            self._kinds = (
                view.has_properties(start, end),
                view.has_headers(start, end),
                view.common_priority(start, end),
            )
        return self._kinds

    def numbers(self) -> range:
        """Return the number that the producer gave to each message."""
        header = self.run.header
        step = header.step * header.stride
        first = header.number + self.start * step
        return range(first, first + self.count * step, step)

    def sequences(self) -> range:
        """The sequences."""
        header = self.run.header
        first = header.sequence + self.start * header.step
        return range(first, first + self.count * header.step, header.step)


class _Block:
    """The rows of a record batch, column by column."""

    def __init__(self, parts: list[_Rows], facts: PartitionFacts) -> None:
        self.parts: list[_Rows] = parts
        self.count: int = sum(part.count for part in parts)
        self.facts: PartitionFacts = facts

    def same(self, value: Any, kind: Any) -> Any:
        """A column with one value."""
        return pa.repeat(pa.scalar(value, kind), self.count)

    def of_runs(self, read: Callable[[_Rows], int], kind: Any) -> Any:
        """A column of numbers that are the same in a run."""
        values = [read(part) for part in self.parts]
        if len(set(values)) == 1:
            return self.same(values[0], pa.int64()).cast(kind)
        numbers = array("q")
        for part, value in zip(self.parts, values, strict=True):
            numbers += array("q", (value,)) * part.count
        return self._numbers(numbers).cast(kind)

    def _numbers(self, numbers: array[int]) -> Any:
        return pa.Array.from_buffers(pa.int64(), self.count, [None, pa.py_buffer(numbers)])

    def values(self) -> Any:
        """The bodies."""
        arrays = [part.values(self.facts) for part in self.parts]
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)

    def keys(self) -> Any:
        """The keys."""
        return self.of_properties(key_bytes, pa.binary(), None)

    def offsets(self) -> Any:
        """The sequences."""
        numbers = array("q")
        for part in self.parts:
            numbers.extend(part.sequences())
        return self._numbers(numbers)

    def message_ids(self) -> Any:
        """The ids, as ``MessageId`` has them as text."""
        numbers = array("q")
        for part in self.parts:
            numbers.extend(part.numbers())
        producers = [part.run.header.producer.hex() for part in self.parts]
        if len(set(producers)) == 1:
            names = pa.scalar(producers[0], pa.string())
        else:
            pairs = zip(producers, self.parts, strict=True)
            names = pa.concat_arrays([pa.repeat(pa.scalar(name, pa.string()), part.count) for name, part in pairs])
        return pc.binary_join_element_wise(names, self._numbers(numbers).cast(pa.string()), "-")

    def of_properties(self, read: Callable[[dict[str, PropertyValue]], object], kind: Any, empty: object) -> Any:
        """A column that is read from the properties of each message; ``empty``: its value where there are none."""
        found: list[object] = []
        for part in self.parts:
            found += map(read, part.properties()) if part.has_properties() else [empty] * part.count
        return pa.array(found, kind)

    def expirations(self, kind: Any) -> Any:
        """When the messages expire."""
        return self.of_headers(self._micros, pa.int64()).cast(kind)

    @staticmethod
    def _micros(message: ReceivedMessage) -> int | None:
        time = message.expiration
        return None if time is None else round(time * 1_000_000)

    def of_headers(self, read: Callable[[ReceivedMessage], object], kind: Any) -> Any:
        """A column that is read from the optional headers of each message, and NULL where there are none."""
        found: list[object] = []
        for part in self.parts:
            found += map(read, part.messages()) if part.has_headers() else [None] * part.count
        return pa.array(found, kind)

    def priorities(self, kind: Any) -> Any:
        """The priorities."""
        known = {part.priority() for part in self.parts}
        if len(known) == 1 and None not in known:
            return self.same(known.pop(), kind)
        return self.each(lambda message: message.priority, kind)

    def each(self, read: Callable[[ReceivedMessage], object], kind: Any) -> Any:
        """A column that is read message by message."""
        return pa.array([read(message) for part in self.parts for message in part.messages()], kind)


def _headers(properties: dict[str, PropertyValue]) -> list[dict[str, object]]:
    return [{"key": name, "value": as_bytes(value)} for name, value in shown_without_key(properties)]


def _texts(properties: dict[str, PropertyValue]) -> list[tuple[str, object]]:
    return [(name, as_text(value)) for name, value in shown_without_key(properties)]


def _micros(rows: _Rows) -> int:
    """When the messages came to their first broker, or were sent where that is not known."""
    return (rows.run.header.arrival or rows.run.stamp_ms) * 1_000


#: The columns: from the rows and the type that Spark wants.
_COLUMNS: Final[dict[str, Callable[[_Block, Any], Any]]] = {
    "key": lambda rows, kind: rows.keys(),
    "value": lambda rows, kind: rows.values(),
    "topic": lambda rows, kind: rows.same(rows.facts.queue, kind),
    "partition": lambda rows, kind: rows.same(rows.facts.ordinal, kind),
    "offset": lambda rows, kind: rows.offsets(),
    "timestamp": lambda rows, kind: rows.of_runs(_micros, kind),
    "headers": lambda rows, kind: rows.of_properties(_headers, kind, ()),
    "node": lambda rows, kind: rows.same(rows.facts.node, kind),
    "message_id": lambda rows, kind: rows.message_ids(),
    "delivery_count": lambda rows, kind: rows.same(0, kind),
    "priority": lambda rows, kind: rows.priorities(kind),
    "expiration": lambda rows, kind: rows.expirations(kind),
    "correlation_id": lambda rows, kind: rows.of_headers(lambda message: message.correlation_id, kind),
    "reply_to": lambda rows, kind: rows.of_headers(lambda message: message.reply_to, kind),
    "content_type": lambda rows, kind: rows.of_headers(lambda message: message.content_type, kind),
    "duplicate_id": lambda rows, kind: rows.of_headers(lambda message: message.duplicate_id, kind),
    "group_id": lambda rows, kind: rows.of_headers(lambda message: message.group, kind),
    "durable": lambda rows, kind: rows.of_runs(lambda one: int(one.run.durable), kind),
    "properties": lambda rows, kind: rows.of_properties(_texts, kind, ()),
}


class BatchBuilder:
    """Gathers runs into record batches of a schema; the columns are made for a whole batch at once."""

    def __init__(self, schema: Any, facts: PartitionFacts) -> None:
        self._schema = schema
        self._facts = facts
        self._makers = [(_COLUMNS[field.name], field.type) for field in schema]
        self._shows_bodies = "value" in schema.names
        # What becomes one batch each; a large body is one of its own, since to join is to copy.
        self._parts: list[list[_Rows]] = []
        self._joining = False
        self._rows = self._bytes = 0

    def add(self, part: RunPart) -> None:
        """Add messages.

        Raises:
            MeshqError: a large body did not come, and its message is not added.
        """
        rows = _Rows(part)
        if self._shows_bodies:
            # Here and not in ``take``: whoever reads on after a lost link begins with the first that was not added.
            rows.check_body()
        joins = rows.run.large is None
        if joins and self._joining:
            self._parts[-1].append(rows)
        else:
            self._parts.append([rows])
        self._joining = joins
        self._rows += rows.count
        self._bytes += rows.size

    @property
    def full(self) -> bool:
        """Whether a batch is worth its way."""
        return self._rows >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES

    def take(self) -> Iterator[Any]:
        """The gathered rows, in order, in as few batches as large bodies allow; nothing if there are none.

        Raises:
            SettingsError: a body is too large; names its message and the limit.
        """
        parts, self._parts, self._joining = self._parts, [], False
        self._rows = self._bytes = 0
        for one in parts:
            block = _Block(one, self._facts)
            if self._makers:
                arrays = [make(block, kind) for make, kind in self._makers]
                yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            else:
                # A count asks for no column.
                yield pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), block.count, [None]))


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
        if whole[-1] - whole[0] > limits.MESSAGE_BYTES_MAX < max(map(int.__sub__, whole[1:], whole[:-1])):
            # Whoever reads it alone can say which row it is.
            return None
        self._row += len(column)
        return Bodies(self._topic, whole, memoryview(b"" if data is None else data))

    def columns(self, batch: Any) -> list[RowColumns] | None:
        """The rows of a batch as the columns of runs, for each address; None: they are read one by one."""
        found = columns_to_send(batch, self._topic)
        if found is not None:
            self._row += batch.num_rows
        return found

    def rows(self, batch: Any) -> Iterator[OutgoingRow]:
        """The rows of a batch.

        Raises:
            SettingsError: a row can't be sent; names the column, the partition and the row.
        """
        columns: dict[str, Any] = {name: self._listed(name, batch.column(name)) for name in batch.schema.names}
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

    def _listed(self, name: str, column: Any) -> list[Any]:
        """The values of a column.  Raises: SettingsError: one is text that is none; names its row."""
        try:
            found: list[Any] = column.to_pylist()
        except UnicodeDecodeError:
            for value in column:
                try:
                    value.as_py()
                except UnicodeDecodeError:
                    break
                self._row += 1
            raise self._error(name, "text in UTF-8", shown="...") from None
        return found

    def _error(self, column: str, allowed: str, *, shown: str | None = None) -> SettingsError:
        where = f"column {column!r} (partition {self._partition}, row {self._row})"
        return SettingsError(where, None, allowed, shown=shown)

    def placed(self, error: SettingsError) -> SettingsError:
        """The error of a row, with its place."""
        setting = "column 'value'" if error.setting == "body" else error.setting
        where = f"{setting} (partition {self._partition}, row {self._row})"
        return SettingsError(where, None, error.allowed, shown=error.shown if error.shown is not None else "...")
