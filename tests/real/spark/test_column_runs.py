"""Rows that Arrow encodes are, byte by byte, what they are when each is read alone; all others are read alone."""

from __future__ import annotations

import mmap
import random
import struct
import tempfile
from typing import Any, cast

import pytest

from meshq import limits
from meshq.blocking.connector import RunPart
from meshq.client import DeliveredRun, ReceivedMessage, Stage, send_columns
from meshq.client.send._envelope import EnvelopeEncoder
from meshq.errors import SettingsError
from meshq.spark._properties_format import KEY
from meshq.wire import Deliver, Frame, FrameType, RunBytes, RunView, check_run, encode_run

pytestmark = [pytest.mark.spark]
pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
from meshq.spark.hooks._arrow_rows import BatchBuilder, PartitionFacts, RowReader  # noqa: E402
from meshq.spark.hooks._arrow_runs import COLUMNS  # noqa: E402

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TYPES = {
    **dict.fromkeys(("topic", "group_id", "duplicate_id", "correlation_id", "content_type"), pa.string()),
    "value": pa.binary(),
    "key": pa.binary(),
    "headers": HEADERS,
    "priority": pa.int32(),
}
#: Around the sizes at which msgpack says a length in another way.
SIZES = (0, 1, 31, 32, 255, 256, 1_000)


class Gathering:
    """A stage that keeps what it is given."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, RunBytes]] = []

    async def _send_run(self, address: str, run: RunBytes) -> None:
        check_run(run)
        self.runs.append((address, run))


def batch_of(rows: list[dict[str, Any]], **types: Any) -> Any:
    schema = pa.schema([(name, types.get(name, TYPES[name])) for name in rows[0]])
    return pa.RecordBatch.from_pylist(rows, schema)


def by_rows(batch: Any) -> dict[str, list[tuple[int, bytes, bytes, bytes, bytes]]]:
    """What each address gets when every row is read alone."""
    encoder, found = EnvelopeEncoder(), dict[str, list[tuple[int, bytes, bytes, bytes, bytes]]]()
    names = ("properties", "duplicate_id", "correlation_id", "reply_to", "content_type")
    for row in RowReader(None, 0).rows(batch):
        about = row.about
        envelope = encoder.row(*map(about.get, names), about.get("priority", 4), None, None, about.get("group"))
        found.setdefault(row.address, []).append((*envelope, row.body))
    return found


async def by_columns(batch: Any) -> dict[str, list[tuple[int, bytes, bytes, bytes, bytes]]]:
    """The same when Arrow encodes them."""
    columns = RowReader(None, 0).columns(batch)
    assert columns is not None
    stage = Gathering()
    for one in columns:
        await send_columns(cast("Stage", cast("Any", stage)), one)
    found = dict[str, list[tuple[int, bytes, bytes, bytes, bytes]]]()
    for address, run in stage.runs:
        view = RunView(run)
        found.setdefault(address, []).extend(
            (view.kind(row), view.duplicate_id(row), view.headers(row), view.properties(row), view.body(row))
            for row in range(run.rows)
        )
    return found


def some_row(rng: random.Random, names: list[str]) -> dict[str, Any]:
    def data() -> bytes:
        return rng.randbytes(rng.choice(SIZES))

    def text(least: int = 0) -> str:
        return "\u00e9" * (max(least, rng.choice(SIZES)) // 2) or "x" * least

    made: dict[str, Any] = {
        "value": data(),
        "topic": rng.choice(("one", "two")),
        "key": data(),
        "headers": [
            {"key": name, "value": rng.choice((None, data()))}
            for name in rng.sample(["a", "b" * 40, "c"], rng.randrange(4))
        ],
        "priority": rng.randrange(10),
        "group_id": text(1)[:100],
        "duplicate_id": text(1)[:100],
        "correlation_id": text(),
        "content_type": text(),
    }
    return {name: None if name not in ("value", "topic") and rng.random() < 0.3 else made[name] for name in names}


@pytest.mark.parametrize("seed", range(12))
async def test_what_arrow_encodes_is_what_each_row_would_be(seed: int) -> None:
    rng = random.Random(seed)
    others = sorted(COLUMNS - {"value", "topic"})
    names = ["value", "topic", *rng.sample(others, rng.randrange(len(others) + 1))]
    types = {"key": rng.choice((pa.binary(), pa.string())), "value": rng.choice((pa.binary(), pa.string()))}
    rows = [some_row(rng, names) for _ in range(600)]
    for row in rows:
        for name in types.keys() & row.keys():
            if types[name] == pa.string() and row[name] is not None:
                row[name] = row[name].hex()
    batch = batch_of(rows, **types).slice(rng.randrange(20))
    assert await by_columns(batch) == by_rows(batch)


async def test_runs_are_cut_by_number_and_bytes() -> None:
    rows = [{"value": bytes(limits.RUN_BYTES_TARGET // 2), "topic": "one", "priority": 1}] * 3
    rows += [{"value": b"", "topic": "one", "priority": 1}] * (limits.RUN_MESSAGES_MAX + 1)
    columns = RowReader(None, 0).columns(batch_of(rows))
    assert columns is not None
    stage = Gathering()
    await send_columns(cast("Stage", cast("Any", stage)), columns[0])
    assert [run.rows for _, run in stage.runs] == [2, limits.RUN_MESSAGES_MAX, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": None},
        {"value": bytes(limits.MESSAGE_BYTES_MAX + 1)},
        {"topic": None},
        {"topic": ""},
        {"key": bytes(limits.PROPERTIES_BYTES_MAX)},
        {"priority": 10},
        {"priority": -1},
        {"duplicate_id": ""},
        {"duplicate_id": "d" * 256},
        {"group_id": ""},
        {"headers": [{"key": None, "value": b""}]},
        {"headers": [{"key": "", "value": b""}]},
        {"headers": [None]},
        {"headers": [{"key": "a", "value": b""}, {"key": "a", "value": b""}]},
        {"key": b"", "headers": [{"key": "key", "value": b""}]},
        {"headers": [{"key": f"n{number}", "value": b""} for number in range(16)]},
    ],
    ids=str,
)
def test_a_row_that_can_not_be_sent_or_is_rare_is_read_alone(wrong: dict[str, Any]) -> None:
    good = {"value": b"good", "topic": "one"} | dict.fromkeys(wrong.keys() - {"value", "topic"})
    assert RowReader(None, 0).columns(batch_of([good])) is not None
    assert RowReader(None, 0).columns(batch_of([good, good | wrong])) is None


def test_text_that_is_none_and_columns_that_are_rare_are_read_alone() -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    value = pa.array([b"good"])
    assert RowReader("one", 0).columns(pa.RecordBatch.from_arrays([value, broken], ["value", "key"])) is None
    late = pa.RecordBatch.from_arrays([value, pa.array([1], pa.int64())], ["value", "ttl_ms"])
    assert RowReader("one", 0).columns(late) is None


@pytest.mark.parametrize("producers", [(b"a" * 16,), (b"a" * 16, b"b" * 16)])
def test_the_ids_of_messages_are_those_that_each_message_has(producers: tuple[bytes, ...]) -> None:
    builder = BatchBuilder(pa.schema([("message_id", pa.string())]), PartitionFacts("one", 0, "node"))
    ids: list[str] = []
    for number, producer in enumerate(producers, 5):
        header = Deliver(address="one", producer=producer, number=number, sequence=1, arrival=1, step=2, stride=3)
        bodies = encode_run([b""] * 9)
        about: dict[str, Any] = {"header": header.encode(), "count": 9, "table": bodies.table, "body": bodies.body}
        run = DeliveredRun(None, 0, Frame(FrameType.DELIVER, first=1, **about))  # type: ignore[arg-type]
        builder.add(RunPart(run, 2, 7))
        ids += [str(ReceivedMessage(run, row).message_id) for row in range(2, 7)]
    (found,) = builder.take()
    assert found.column("message_id").to_pylist() == ids


def test_a_batch_that_passes_two_gib_together_is_read_row_by_row() -> None:
    total, count = 2**31 - 2, 400
    size = total // count
    with tempfile.TemporaryFile() as file:
        # No block of it is written, and none is read before it has to be.
        file.truncate(total)
        with mmap.mmap(file.fileno(), total, access=mmap.ACCESS_READ) as zeros:
            offsets = pa.py_buffer(struct.pack(f"<{count + 1}i", *range(0, size * count, size), total))
            bodies = pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(zeros)])
            keys = pa.array([b"k" * 300] * count)
            reader, batch = RowReader("q", 0), pa.RecordBatch.from_arrays([bodies, keys], ["value", "key"])
            assert reader.columns(batch) is None
            alone = next(reader.rows(batch.slice(count - 1)))
            assert (len(alone.body), alone.about["properties"]) == (total - size * (count - 1), {KEY: b"k" * 300})
            del alone, batch, bodies


@pytest.mark.parametrize("name", ["key", "correlation_id", "topic"])
def test_text_that_is_none_is_an_error_that_names_its_row(name: str) -> None:
    offsets, text = pa.py_buffer(struct.pack("<3i", 0, 2, 4)), pa.py_buffer(b"ok\xff\xfe")
    texts = pa.Array.from_buffers(pa.string(), 2, [None, offsets, text])
    batch = pa.RecordBatch.from_arrays([pa.array([b"a", b"b"]), texts], ["value", name])
    reader = RowReader(None if name == "topic" else "q", 3)
    assert reader.bodies(batch) is None and reader.columns(batch) is None
    with pytest.raises(SettingsError, match=rf"column '{name}' \(partition 3, row 1\).*text in UTF-8"):
        list(reader.rows(batch))
