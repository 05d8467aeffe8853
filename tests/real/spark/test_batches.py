"""Batch reads and writes in a real session of Spark, against a real broker over sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.real.spark.kit import job, texts

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_a_read_takes_nothing_and_reads_what_is_asked_for(spark: Any) -> None:
    with job(spark) as work:
        work.client.create_queue("orders")
        work.client.send_many("orders", texts(range(600)))
        large = bytes(range(256)) * 3_000
        work.client.send("orders", large)
        frame = work.read("orders", includeMetadata="true").select("key", "value", "topic", "offset", "node")
        rows = sorted(frame.collect(), key=lambda row: row.offset)
        assert [bytes(row.value) for row in rows[:600]] == texts(range(600))
        assert [row.offset for row in rows] == list(range(1, 602))
        assert {row.topic for row in rows} == {"orders"}
        assert bytes(rows[600].value) == large and rows[600].key is None
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
        assert work.client.queue("orders").ready == 601
        # Conditions on places decide what is read at all, where Spark and the program say so.
        work.client.create_queue("bills")
        work.client.send_many("bills", texts(range(10)))
        frame = work.read("orders,bills", pushFilters="true").where(
            "topic = 'orders' and offset > 595 and offset < 599"
        )
        with pytest.raises(Exception, match=r"(?s)PUSHDOWN_DISABLED.*spark\.sql\.python\.filterPushdown\.enabled"):
            frame.collect()
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            rest = frame.where("value != cast('595' as binary)")
            assert [(row.topic, row.offset) for row in rest.collect()] == [("orders", 597), ("orders", 598)]
            plan = rest._jdf.queryExecution().executedPlan().toString()
            looked = [line for line in plan.splitlines() if "Filter " in line]
            assert len(looked) == 1 and "value" in looked[0] and "topic" not in looked[0] and "offset" not in looked[0]
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_save_is_sent_once_under_its_name_and_takes_the_place_of_others_if_asked(spark: Any, tmp_path: Path) -> None:
    with job(spark, tmp_path / "hq") as work:
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
        # What is there goes by the same decision, once.
        for version in (5, 5):
            frame = spark.range(2).selectExpr("concat('new', cast(id as string)) as value")
            writer = frame.write.format("meshq").options(url=work.url, topic="named", purgeOnOverwrite="true")
            writer.options(txnAppId="job", txnVersion=version).mode("overwrite").save()
            work.check_nothing_is_left()
        assert sorted(work.bodies("named")) == ["new0", "new1"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
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
        with pytest.raises(Exception, match=r"(?s)UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*\"Append\" or \"Overwrite\""):
            frame.write.format("meshq").options(url=work.url, topic="out").save()
        with pytest.raises(Exception, match=r"(?s)did you mean 'topic'"):
            work.save(spark.range(1).selectExpr("'a' as value", "'b' as topics"))
        assert work.client.stages() == work.client.sinks() == []
        assert "out" not in work.client.queues() or work.client.queue("out").ready == 0
