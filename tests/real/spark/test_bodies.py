"""Bodies that lie side by side go as columns from Arrow into runs and back; nothing is done for each row."""

from __future__ import annotations

from array import array

import attrs
import pytest

from meshq import limits
from meshq.blocking import Broker, connect
from meshq.errors import SettingsError
from meshq.spark._nodes import NodeAddress
from meshq.spark._options_plan import access_of, read_options

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
from pyspark.sql.types import BinaryType, LongType, StructField, StructType  # noqa: E402

from meshq.spark.hooks._arrow_rows import PartitionFacts, RowReader, by_reference, side_by_side  # noqa: E402
from meshq.spark.hooks._source import ReadTask, TaskReader  # noqa: E402


def batch(values: list[bytes | str | None], kind: object = None) -> object:
    """A record batch with a body each."""
    return pa.record_batch([pa.array(values, kind or pa.binary())], names=["value"])


def test_the_bodies_of_a_batch_are_its_own_buffers() -> None:
    reader = RowReader("orders", 0)
    found = reader.bodies(batch([b"a", b"", b"ccc"]))
    assert found is not None
    assert (found.address, list(found.offsets), bytes(found.data)[:4]) == ("orders", [0, 1, 1, 4], b"accc")
    # A part of a batch, and text.
    part = reader.bodies(batch([b"a", b"bb", b"ccc"]).slice(1))
    assert part is not None and list(part.offsets) == [1, 3, 6] and part.rows == 2
    text = reader.bodies(batch(["ä", "b"], pa.string()))
    assert text is not None and bytes(text.data)[:3] == "äb".encode()
    empty = reader.bodies(batch([b"", b""]))
    assert empty is not None and list(empty.offsets) == [0, 0, 0]


def test_bodies_behind_something_else_become_an_array_that_begins_with_them() -> None:
    offsets = array("I", [3, 4, 4, 6]).tobytes()
    found = side_by_side(3, offsets, b"xxxabbyy")
    assert found.to_pylist() == [b"a", b"", b"bb"]
    assert memoryview(found.buffers()[1]).cast("I").tolist() == [0, 1, 1, 3]
    assert found.buffers()[2].to_pybytes() == b"abb"
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("value", pa.binary())])) as writer:
        writer.write_batch(pa.record_batch([found], names=["value"]).slice(0, 2))
    assert pa.ipc.open_stream(sink.getvalue()).read_all().to_pydict() == {"value": [b"a", b""]}
    whole = side_by_side(2, array("I", [0, 1, 2]).tobytes(), memoryview(b"ab"))
    assert whole.to_pylist() == [b"a", b"b"]


def test_a_large_body_is_read_without_a_copy() -> None:
    body = bytes(range(256)) * 4
    found = by_reference(body)
    assert found.to_pylist() == [body] and found.buffers()[2].address == pa.py_buffer(body).address


def test_bodies_are_read_in_order_up_to_a_limit_that_the_error_says() -> None:
    schema = StructType([StructField("value", BinaryType(), False), StructField("offset", LongType(), False)])
    largest = bytes(limits.MESSAGE_BYTES_MAX)
    with Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker, connect(broker.urls[0]) as client:
        client.create_queue("orders")
        for body in (b"a", b"b", largest, b"c", b"d"):
            client.send("orders", body)
        client.send("orders", largest + b"x")
        access = access_of(read_options({"url": broker.urls[0], "subscribe": "orders"}, "batch read"))
        node = client.statistics().node_id.hex()
        address = NodeAddress(node, tuple(broker.urls))
        reader = TaskReader(access, schema, fail_on_loss=True)
        task = ReadTask(facts=PartitionFacts("orders", 0, node), lo=1, hi=6, address=address)
        batches = list(reader.read(task))
        assert [number for one in batches for number in one.column("offset").to_pylist()] == [1, 2, 3, 4, 5]
        values = [value.as_buffer() for one in batches for value in one.column("value")]
        assert [len(value) for value in values] == [1, 1, limits.MESSAGE_BYTES_MAX, 1, 1]
        # Small bodies share a batch, and the large one is alone in its own.
        assert [one.num_rows for one in batches] == [2, 1, 2]
        over = rf"message 6 of orders@{node} has {len(largest) + 1} bytes.*at most {limits.MESSAGE_BYTES_MAX} bytes"
        with pytest.raises(SettingsError, match=over) as caught:
            list(reader.read(attrs.evolve(task, lo=6, hi=7)))
        assert caught.value.setting == "value"


def test_what_has_more_than_bodies_is_read_row_by_row() -> None:
    assert RowReader(None, 0).bodies(batch([b"a"])) is None
    assert RowReader("orders", 0).bodies(batch([b"a", None])) is None
    assert RowReader("orders", 0).bodies(batch([])) is None
    two = pa.record_batch([pa.array([b"a"], pa.binary()), pa.array([b"k"], pa.binary())], names=["value", "key"])
    assert RowReader("orders", 0).bodies(two) is None


def test_the_row_that_can_not_be_sent_is_counted_behind_those_that_went_as_columns() -> None:
    reader = RowReader("orders", 3)
    assert reader.bodies(batch([b"a", b"b"])) is not None
    with pytest.raises(SettingsError, match=r"column 'value' \(partition 3, row 3\)"):
        list(reader.rows(batch([b"c", None])))


def test_a_body_over_the_limit_is_left_to_who_can_name_its_row() -> None:
    assert RowReader("orders", 0).bodies(batch([b"a", bytes(limits.MESSAGE_BYTES_MAX)])) is not None
    assert RowReader("orders", 0).bodies(batch([b"a", bytes(limits.MESSAGE_BYTES_MAX + 1)])) is None
