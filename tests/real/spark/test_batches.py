"""Batch reads and writes in a real session of Spark, against a real broker over sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshq.spark._columns_plan import SOURCE
from tests.real.spark.kit import job, texts

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_a_read_shows_every_column_and_takes_nothing(spark: Any) -> None:
    with job(spark) as work:
        work.client.create_queue("orders")
        work.client.send_many("orders", texts(range(600)))
        properties = {"key": "k", "n": 5, "raw": b"\x00\x01", "none": None}
        about = {"correlation_id": "c", "reply_to": "back", "content_type": "text/plain", "duplicate_id": b"d"}
        work.client.send("orders", b"x", properties=properties, priority=7, group="g", ttl=3_600, **about)
        large = bytes(range(256)) * 3_000
        work.client.send("orders", large)
        frame = work.read("orders", includeHeaders="true", includeMetadata="true")
        assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
            (column.name, column.type) for column in SOURCE
        ]
        rows = sorted(frame.collect(), key=lambda row: row.offset)
        assert [bytes(row.value) for row in rows[:600]] == texts(range(600))
        assert [row.offset for row in rows] == list(range(1, 603))
        assert {(row.topic, row.partition, row.delivery_count) for row in rows} == {("orders", 0, 0)}
        full = rows[600]
        assert (bytes(full.key), bytes(full.value), full.priority, full.group_id) == (b"k", b"x", 7, "g")
        assert [(header.key, header.value and bytes(header.value)) for header in full.headers] == [
            *(("n", b"5"), ("none", None), ("raw", b"\x00\x01"))
        ]
        assert full.properties == {"n": "5", "none": None, "raw": "AAE="}
        assert (full.correlation_id, full.reply_to, full.content_type) == ("c", "back", "text/plain")
        assert bytes(full.duplicate_id) == b"d" and rows[0].duplicate_id is None
        assert 3_590 < (full.expiration - full.timestamp).total_seconds() <= 3_601 and rows[0].expiration is None
        assert bytes(rows[601].value) == large and rows[601].key is None
        # A read takes nothing, and is the same again, by more tasks and with fewer columns, and from place to place.
        node = rows[0].node
        few = work.spark.read.schema("offset bigint, node string").format("meshq")
        few = few.option("startingOffsets", f'{{"orders@{node}": 11}}').option(
            "endingOffsets", f'{{"orders@{node}": 601}}'
        )
        few = few.options(url=work.url, subscribe="orders", minPartitions=2, maxRecordsPerPartition=200).load()
        tasks: dict[int, list[int]] = {}
        for row in few.selectExpr("spark_partition_id() as task", "offset").collect():
            tasks.setdefault(row.task, []).append(row.offset)
        assert sorted(tasks.values()) == [list(range(11, 207)), list(range(207, 404)), list(range(404, 601))]
        assert work.client.queue("orders").ready == 602


def test_rows_become_messages_with_all_that_their_columns_say(spark: Any, tmp_path: Path) -> None:
    with job(spark, tmp_path / "hq") as work:
        frame = spark.range(1).selectExpr(
            *("'body' as value", "cast('k' as binary) as key", "'one' as topic", "9 as priority"),
            *(
                "60000L as ttl_ms",
                "false as durable",
                "'g' as group_id",
                "'d' as duplicate_id",
                "'c' as correlation_id",
            ),
            *("'back' as reply_to", "'text/plain' as content_type"),
            "array(named_struct('key', 'h', 'value', cast('x' as binary))) as headers",
            "named_struct('n', 5, 'ok', true, 'f', 1.5D, 's', 'text', 'gone', cast(null as string)) as properties",
        )
        work.save(frame)
        with work.client.consumer("one") as consumer:
            message = consumer.receive(5)
        assert message is not None and message.body == b"body"
        assert message.properties == {"key": b"k", "h": b"x", "n": 5, "ok": True, "f": 1.5, "s": "text"}
        assert (message.priority, message.group, message.duplicate_id) == (9, "g", b"d")
        assert (message.correlation_id, message.reply_to, message.content_type) == ("c", "back", "text/plain")
        assert message.expiration is not None and message.durable is False
        # The option goes before the column; a save leaves neither a stage nor a sink.
        work.save(spark.range(500).selectExpr("cast(id as string) as value", "'other' as topic"), topic="many")
        assert sorted(map(int, work.bodies("many"))) == list(range(500))
        assert "other" not in work.client.queues()
        work.check_nothing_is_left()
        assert work.client.sinks() == []
        # A batch with a name is sent once, and a later one again.
        for version in (3, 3, 2, 4):
            work.save(
                spark.range(5).selectExpr("cast(id as string) as value"),
                topic="named",
                txnAppId="job",
                txnVersion=version,
            )
        work.check_nothing_is_left()
        assert work.client.queue("named").ready == 10
        assert [(sink.sink, sink.batch) for sink in work.client.sinks()] == [("job", 4)]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"subscrieb": "x"}, "did you mean 'subscribe'"),
        ({"subscribe": "nothing"}, "NotFoundError.*'nothing'.*queues, not addresses"),
        ({"url": "tcp://127.0.0.1:1"}, "ConnectionBrokenError"),
    ],
)
def test_a_read_that_can_not_be(spark: Any, options: dict[str, str], match: str) -> None:
    with job(spark) as work:
        work.client.create_queue("orders")
        with pytest.raises(Exception, match=f"(?s){match}"):
            work.spark.read.format("meshq").options(
                **({"url": work.url, "subscribe": "orders"} | options)
            ).load().count()


def test_a_write_that_fails_leaves_nothing(spark: Any) -> None:
    with job(spark) as work:
        with pytest.raises(Exception, match=r"(?s)column 'value' \(partition 0, row 3\).*NULL can't be sent"):
            frame = spark.range(5).coalesce(1).selectExpr("if(id = 3, null, cast(id as string)) as value")
            work.save(frame, topic="out")
        with pytest.raises(Exception, match=r"(?s)SettingsError.*overwrite.*append"):
            frame.write.format("meshq").options(url=work.url, topic="out").mode("overwrite").save()
        with pytest.raises(Exception, match=r"(?s)did you mean 'topic'"):
            work.save(spark.range(1).selectExpr("'a' as value", "'b' as topics"))
        assert work.client.stages() == work.client.sinks() == []
        assert "out" not in work.client.queues() or work.client.queue("out").ready == 0
