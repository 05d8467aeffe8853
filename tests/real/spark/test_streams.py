"""Streaming reads and writes in a real session of Spark, against a real broker over sockets."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.real.spark.kit import job, reads_streams, texts

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), reads_streams]


def test_a_stream_is_copied_once_over_runs_and_an_old_checkpoint_is_refused(spark: Any, tmp_path: Path) -> None:
    with job(spark, tmp_path / "hq") as work:
        work.client.create_queue("orders")
        work.client.send_many("orders", texts(range(1_000)))
        frame = work.stream("orders", maxOffsetsPerTrigger=400, minPartitions=2).select("value")
        query = work.start(frame, tmp_path / "checkpoint", topic="copy")
        query.awaitTermination()
        batches = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
        assert batches == [400, 400, 200]
        work.check_nothing_is_left()
        assert sorted(map(int, work.bodies("copy"))) == list(range(1_000))
        # Whatever a query that ends has read is acknowledged, and its cursor waits for the next run.
        (cursor,) = work.client.cursors()
        assert (cursor.name, cursor.holder, cursor.processed, cursor.lag) == ("orders", "", 1_001, 0)
        (sink,) = work.client.sinks()
        assert (sink.sink, sink.batch) == (str(query.id), 2)
        shutil.copytree(tmp_path / "checkpoint", tmp_path / "old")
        work.client.send_many("orders", texts(range(1_000, 1_300)))
        work.run(frame, tmp_path / "checkpoint", topic="copy")
        work.check_nothing_is_left()
        assert sorted(map(int, work.bodies("copy"))) == list(range(1_300))
        node = work.client.statistics().node_id.hex()
        with pytest.raises(Exception, match=rf"(?s)DataLossError.*\[1001, 1301\) of orders@{node} are gone"):
            work.run(frame, tmp_path / "old", topic="copy")
        # Who goes on all the same has other batches under these numbers, and so another sink.
        work.client.send_many("orders", texts(range(1_300, 1_310)))
        losing = work.stream("orders", failOnDataLoss="false").select("value")
        work.run(losing, tmp_path / "old", topic="copy", sinkId="again")
        work.check_nothing_is_left()
        assert sorted(map(int, work.bodies("copy"))) == list(range(1_310))
        assert {sink.sink for sink in work.client.sinks()} == {str(query.id), "again"}


def test_a_second_query_on_a_cursor_is_refused_with_the_owner_named(spark: Any, tmp_path: Path) -> None:
    with job(spark) as work:
        work.client.create_queue("orders")
        work.client.send("orders", b"a")
        refused = pytest.raises(Exception, match=r"(?s)CursorHeldError.*'orders'.*held by session")
        with work.client.cursor("orders", "orders", lease=0.5), refused:
            work.run(work.stream("orders", lease="500ms").select("value"), tmp_path / "second", topic="copy")
        assert work.client.queue("orders").ready == 1


def test_at_least_once_sends_with_duplicate_ids_and_complete_takes_the_place_of_what_is_there(
    spark: Any, tmp_path: Path
) -> None:
    with job(spark) as work:
        work.client.create_queue("orders")
        work.client.create_queue("other")
        work.client.send_many("orders", texts(range(50)))
        frame = work.stream("", subscribePattern="ord.*", cursor="totals", maxBytesPerTrigger=10_000)
        frame = frame.selectExpr("value", "concat('to', cast(offset % 2 as string)) as topic")
        query = work.start(frame, tmp_path / "checkpoint", delivery="at-least-once")
        query.awaitTermination()
        assert len(work.bodies("to0")) == len(work.bodies("to1")) == 25
        with work.client.consumer("to1", browse=True) as browser:
            assert next(browser).duplicate_id == f"{query.id}-0-0-0".encode()
        assert work.client.sinks() == []
        assert [(cursor.queue, cursor.name) for cursor in work.client.cursors()] == [("orders", "totals")]
        # A table that is written whole each time leaves its last state.
        frame = work.stream("orders", cursor="totals").groupBy("topic").count()
        frame = frame.selectExpr("concat(topic, ' ', cast(count as string)) as value")
        for expected in ("orders 3", "orders 7"):
            work.check_nothing_is_left()
            work.client.send_many("orders", texts(range(3 if expected == "orders 3" else 4)))
            about = {"url": work.url, "topic": "state", "purgeOnOverwrite": "true"}
            writer = frame.writeStream.format("meshq").outputMode("complete").options(**about)
            writer = writer.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True)
            writer.start().awaitTermination()
            work.check_nothing_is_left()
            assert work.bodies("state") == [expected]
