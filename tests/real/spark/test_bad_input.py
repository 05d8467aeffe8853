"""What a job may do wrong, and what may go wrong for it: a typed error with names, nothing acknowledged, nothing left.

An unknown option, queue or column, a null value and a wrong password stand in ``test_batches.py`` and
``test_clusters.py``; a second query, and a checkpoint older than what is retained, in ``test_streams.py``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from meshq import limits
from meshq.blocking import Broker, connect
from meshq.errors import ConnectionBrokenError, NotFoundError, SettingsError, UsageError
from meshq.spark._nodes import Brokers, NodeAddress, missing_queue
from meshq.spark._options_plan import access_of, read_options
from tests.real.spark.kit import job, reads_streams, texts

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_a_body_over_the_limit_names_its_row_and_leaves_nothing(spark: Any) -> None:
    with job(spark) as work:
        size = limits.MESSAGE_BYTES_MAX + 1
        frame = spark.range(2).coalesce(1).selectExpr(f"cast(repeat('x', if(id = 1, {size}, 3)) as binary) as value")
        match = rf"(?s)SettingsError.*column 'value' \(partition 0, row 1\).*{limits.MESSAGE_BYTES_MAX}"
        with pytest.raises(Exception, match=match):
            work.save(frame, topic="out")
        assert work.client.stages() == work.client.sinks() == []
        assert "out" not in work.client.queues() or work.client.queue("out").ready == 0


def test_a_schema_that_does_not_fit_is_refused_with_the_column_and_its_type(spark: Any) -> None:
    match = r"(?s)SettingsError.*schema\['headers'\].*array<struct<key:string,value:binary>>"
    with job(spark, queues=["orders"]) as work, pytest.raises(Exception, match=match):
        reader = spark.read.format("meshq").options(url=work.url, subscribe="orders")
        reader.schema("headers array<string>").load().count()


@reads_streams
def test_the_checkpoint_of_another_cursor_and_of_an_older_one_is_refused_and_nothing_is_acknowledged(
    spark: Any, tmp_path: Path
) -> None:
    with job(spark, queues=["orders"]) as work:
        work.client.send_many("orders", texts(range(3)))
        frame = work.stream("orders").select("value")
        work.run(frame, tmp_path / "checkpoint", topic="copy")
        work.check_nothing_is_left()
        work.client.delete_cursor("orders", "orders")
        work.client.send_many("orders", texts(range(3, 7)))
        left = work.client.queue("orders").ready
        match = r"(?s)SettingsError.*audit.*'orders', of which the checkpoint has the place"
        with pytest.raises(Exception, match=match):
            work.run(work.stream("orders", cursor="audit").select("value"), tmp_path / "checkpoint", topic="copy")
        work.check_nothing_is_left()
        assert work.client.queue("orders").ready == left
        # One of the same name, but registered anew.
        if [cursor.name for cursor in work.client.cursors()] == ["audit"]:
            work.client.delete_cursor("orders", "audit")
        node = work.client.statistics().node_id.hex()
        match = rf"(?s)CursorLostError.*'orders' of orders@{node} was registered anew.*epoch"
        with pytest.raises(Exception, match=match):
            work.run(frame, tmp_path / "checkpoint", topic="copy")
        work.check_nothing_is_left()
        assert work.client.queue("orders").ready == left
        assert sorted(map(int, work.bodies("copy"))) == [0, 1, 2]


def test_a_stream_of_an_older_spark_is_refused_with_the_version_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = pytest.importorskip("meshq.spark.hooks._versions")
    monkeypatch.setattr(versions, "STREAMING", None)
    with pytest.raises(UsageError, match=r"a streaming read needs PySpark 4\.2 or later; this is 4\."):
        versions.check_streaming()
    assert versions.available_now() is object


def test_a_file_that_is_not_there_is_named_with_its_option(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret")
    absent = str(tmp_path / "absent")
    given = {"url": "tls://127.0.0.1:1", "subscribe": "orders", "user": "app"}
    for option in ("passwordFile", "tls.authorities", "tls.certificate"):
        options = given | {"passwordFile": str(tmp_path / "password"), option: absent}
        with (
            pytest.raises(SettingsError, match=re.escape(absent)) as caught,
            Brokers(access_of(read_options(options, "batch read"))) as brokers,
        ):
            brokers.links()
        assert option.removeprefix("tls.") in str(caught.value)


def test_an_address_that_is_no_queue_is_refused_with_what_to_subscribe_to_instead() -> None:
    with Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker, connect(broker.urls[0]) as client:
        client.create_address("events", "multicast")
        given = {"url": broker.urls[0], "subscribe": "events"}
        with Brokers(access_of(read_options(given, "batch read"))) as brokers:
            links = brokers.links().values()
            wrong, absent = missing_queue(links, "events"), missing_queue(links, "orders")
    assert isinstance(wrong, SettingsError) and wrong.setting == "subscribe" and "events::audit" in str(wrong)
    assert isinstance(absent, NotFoundError) and "'orders'" in str(absent) and "queues, not addresses" in str(absent)


def test_a_node_that_an_executor_does_not_reach_is_named_with_its_partition_and_the_urls_that_were_tried(
    spark: Any,
) -> None:
    with job(spark, queues=["orders"]) as work:
        given = {"url": work.url, "subscribe": "orders", "partitionTimeout": "300ms"}
        away = NodeAddress("ab" * 16, ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"))
        with (
            Brokers(access_of(read_options(given, "batch read"))) as brokers,
            pytest.raises(ConnectionBrokenError) as caught,
            brokers.reached(away, f"orders@{away.node}"),
        ):
            pass
        text = str(caught.value)
        assert all(part in text for part in (f"orders@{away.node}", *away.urls)) and caught.value.outcome == "not_done"
