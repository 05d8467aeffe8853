"""A range whose reading is cut: what did not come is read again, and no row is left out.  Needs no session of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from meshq.blocking.connector import RunPart
from meshq.client import DeliveredRun
from meshq.errors import ConnectionBrokenError
from meshq.spark._nodes import Brokers, NodeAddress
from meshq.spark._options_plan import access_of, read_options
from meshq.wire import FLAG_LARGE, Deliver, Frame, FrameType, encode_run

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
from pyspark.sql.types import BinaryType, LongType, StructField, StructType  # noqa: E402

from meshq.spark.hooks._arrow_rows import PartitionFacts  # noqa: E402
from meshq.spark.hooks._source import ReadTask, TaskReader  # noqa: E402

NODE = "1f" * 16
TASK = ReadTask(facts=PartitionFacts("orders", 0, NODE), lo=1, hi=7, address=NodeAddress(NODE, ()))


def part(sequence: int, count: int = 1, *, size: int = 0) -> RunPart:
    """A run of messages; of one with a body of this size, which does not come with it."""
    run = encode_run([b"" if size else b"x"] * count)
    header = Deliver(address="orders", producer=b"p" * 16, number=1, sequence=sequence, size=size)
    flags = FLAG_LARGE if size else 0
    frame = Frame(
        FrameType.DELIVER, flags=flags, first=1, header=header.encode(), count=count, table=run.table, body=run.body
    )
    return RunPart(DeliveredRun(None, 0, frame), 0, count)  # type: ignore[arg-type]


@pytest.mark.parametrize(("columns", "cuts"), [(["offset", "value"], 1), (["offset"], 0)])
def test_a_row_whose_body_was_cut_off_is_read_again(
    monkeypatch: pytest.MonkeyPatch, columns: list[str], cuts: int
) -> None:
    kinds = {"offset": LongType(), "value": BinaryType()}
    schema = StructType([StructField(name, kinds[name], False) for name in columns])
    lost = ConnectionBrokenError("the link is lost", outcome="not_done")
    begun: list[int] = []

    def parts(reader: TaskReader, client: object, task: ReadTask, at: int) -> Iterator[RunPart]:
        begun.append(at)
        if at == 1:
            yield part(1, 2)
            cut = part(3, size=9_000_000)
            assert cut.run.large is not None
            cut.run.large.trouble = lost
            yield cut
        yield from (part(sequence) for sequence in range(max(at, 4 if at == 1 else 0), 7))

    monkeypatch.setattr(TaskReader, "_parts", parts)
    monkeypatch.setattr(Brokers, "_link", lambda self, address, **changed: _Link())
    access = access_of(read_options({"url": "tcp://127.0.0.1:1", "subscribe": "orders"}, "batch read"))
    batches: list[Any] = list(TaskReader(access, schema, fail_on_loss=True).read(TASK))
    assert [number for one in batches for number in one.column("offset").to_pylist()] == [1, 2, 3, 4, 5, 6]
    assert begun == [1, 3][: cuts + 1]


class _Link:
    """Stands for a link to a node, of which nothing is asked."""

    client = None

    def ending(self, *error: object) -> None:
        """End it."""
