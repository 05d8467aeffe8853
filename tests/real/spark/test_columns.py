"""Every column that is written and every column that is read: as the mapping has it, and once through Spark."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from meshq.blocking.connector import RunPart
from meshq.client import DeliveredRun
from meshq.client.send._envelope import EnvelopeEncoder
from meshq.message import Message
from meshq.spark._columns_plan import HEADERS_TYPE, SINK, SOURCE
from meshq.wire import Deliver, Frame, FrameType, encode_run
from tests.real.spark.kit import job

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
from meshq.spark.hooks._arrow_rows import BatchBuilder, PartitionFacts, RowReader  # noqa: E402

#: For each column that may be written: what it is in SQL, and in Arrow.
WRITTEN: dict[str, tuple[str, Any]] = {
    "value": ("cast('body' as binary)", b"body"),
    "key": ("cast('k' as binary)", b"k"),
    "topic": ("if(id = 0, 'one', 'late')", "one"),
    "headers": (
        "array(named_struct('key', 'h', 'value', cast('x' as binary)), named_struct('key', 'none', 'value', null))",
        [{"key": "h", "value": b"x"}, {"key": "none", "value": None}],
    ),
    "properties": (
        "named_struct('n', 5, 'ok', true, 'f', 1.5D, 's', 'text', 'raw', cast('x' as binary), 'gone', "
        "cast(null as string))",
        {"n": 5, "ok": True, "f": 1.5, "s": "text", "raw": b"x", "gone": None},
    ),
    "priority": ("9", 9),
    "ttl_ms": ("if(id = 0, 60000L, null)", 60_000),
    "delay_ms": ("if(id = 0, null, 60000L)", 60_000),
    "durable": ("false", False),
    "group_id": ("'g'", "g"),
    "duplicate_id": ("concat('d', cast(id as string))", "d0"),
    "correlation_id": ("'c'", "c"),
    "reply_to": ("'back'", "back"),
    "content_type": ("'text/plain'", "text/plain"),
}
#: The keywords of the send that these become.
SENT = {
    "properties": {"key": b"k", "h": b"x", "none": None, "n": 5, "ok": True, "f": 1.5, "s": "text", "raw": b"x"},
    "priority": 9,
    "ttl": 60.0,
    "delay": 60.0,
    "durable": False,
    "group": "g",
    "duplicate_id": "d0",
    "correlation_id": "c",
    "reply_to": "back",
    "content_type": "text/plain",
}
#: What is read again; the expiration follows from ``timestamp``, and the two ids are those of the broker.
READ: dict[str, Any] = {
    "key": b"k",
    "value": b"body",
    "topic": "one",
    "partition": 0,
    "offset": 1,
    "headers": [
        *(("f", b"1.5"), ("h", b"x"), ("n", b"5"), ("none", None), ("ok", b"true"), ("raw", b"x"), ("s", b"text"))
    ],
    "delivery_count": 0,
    "priority": 9,
    "correlation_id": "c",
    "reply_to": "back",
    "content_type": "text/plain",
    "duplicate_id": b"d0",
    "group_id": "g",
    "durable": False,
    "properties": {"f": "1.5", "h": "eA==", "n": "5", "none": None, "ok": "true", "raw": "eA==", "s": "text"},
}
ARROW = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    HEADERS_TYPE: pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}


def plain(value: Any) -> Any:
    """A value of a row as the table has it."""
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, list):
        pairs = [one if isinstance(one, tuple) else tuple(one.values()) for one in value]
        return [(name, plain(data)) for name, data in pairs]
    return value


def test_no_column_is_left_out() -> None:
    assert set(WRITTEN) == set(SINK)
    assert set(READ) | {"timestamp", "node", "message_id", "expiration"} == {column.name for column in SOURCE}
    assert set(SENT) == {field for field in Message.__annotations__ if field != "body"}


def test_each_column_becomes_its_part_of_a_message_and_is_read_again() -> None:
    batch = pa.RecordBatch.from_pylist([{name: value for name, (_, value) in WRITTEN.items()}])
    (row,) = RowReader(None, 0).rows(batch)
    assert (row.address, row.body, row.about) == ("one", b"body", SENT)
    # One that is NULL says nothing.
    (bare,) = RowReader("there", 0).rows(pa.RecordBatch.from_pylist([{**dict.fromkeys(WRITTEN), "value": b""}]))
    assert (bare.address, bare.body, {name: value for name, value in bare.about.items() if value is not None}) == (
        *("there", b""),
        {},
    )
    about = row.about
    names = ("properties", "duplicate_id", "correlation_id", "reply_to", "content_type", "priority", "ttl")
    envelope = EnvelopeEncoder().row(*(about[name] for name in names), None, about["group"])
    run = encode_run([row.body], [envelope])
    header = Deliver(address="one", producer=bytes(15) + b"\7", number=3, sequence=1, arrival=1_000)
    frame = Frame(FrameType.DELIVER, first=1, header=header.encode(), count=1, table=run.table, body=run.body)
    schema = pa.schema([pa.field(column.name, ARROW[column.type]) for column in SOURCE])
    builder = BatchBuilder(schema, PartitionFacts("one", 0, "node"))
    builder.add(RunPart(DeliveredRun(None, 0, frame), 0, 1))  # type: ignore[arg-type]
    (found,) = builder.take()
    (read,) = found.to_pylist()
    read["properties"] = dict(read["properties"])
    assert {name: plain(read[name]) for name in READ} == READ
    assert (read["node"], read["message_id"]) == ("node", f"{(bytes(15) + bytes([7])).hex()}-3")
    assert read["expiration"] - read["timestamp"] == datetime.timedelta(seconds=60)


def test_spark_writes_each_column_and_reads_it_again(spark: Any) -> None:
    with job(spark) as work:
        work.save(spark.range(2).selectExpr(*(f"{sql} as {name}" for name, (sql, _) in WRITTEN.items())))
        work.check_nothing_is_left()
        assert work.client.sinks() == []
        with work.client.consumer("one", browse=True) as browser:
            message = next(browser)
        # Not due yet.
        assert work.client.queue("late").scheduled == 1
        sent = {name: getattr(message, name) for name in SENT if name not in ("ttl", "delay", "duplicate_id")}
        assert sent == {name: SENT[name] for name in sent} and message.duplicate_id == b"d0"
        frame = work.read("one", includeHeaders="true", includeMetadata="true")
        assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
            (column.name, column.type) for column in SOURCE
        ]
        (row,) = frame.collect()
        assert {name: plain(row[name]) for name in READ} == READ
        assert (row.node, row.message_id) == (work.client.statistics().node_id.hex(), str(message.message_id))
        assert row.expiration - row.timestamp == datetime.timedelta(seconds=60)
        assert abs((row.timestamp - datetime.datetime.now()).total_seconds()) < 3_600 * 25
