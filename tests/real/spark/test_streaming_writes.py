"""A stream that is read elsewhere and written to a queue: with every version of PySpark, 4.1 too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.real.spark.kit import job

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_a_batch_that_is_done_again_is_sent_once(spark: Any, tmp_path: Path) -> None:
    files, checkpoint = tmp_path / "files", tmp_path / "checkpoint"
    files.mkdir()
    with job(spark) as work:
        for batch in range(2):
            lines = [str(batch * 10 + number) for number in range(10)]
            (files / f"{batch}.txt").write_text("\n".join(lines))
            query = work.start(spark.readStream.text(str(files)), checkpoint, topic="copy")
            query.awaitTermination()
            work.check_nothing_is_left()
        assert sorted(map(int, work.bodies("copy"))) == list(range(20))
        # As if the last batch had been committed at the broker, and Spark had died before it wrote that down.
        for name in ("1", ".1.crc"):
            (checkpoint / "commits" / name).unlink()
        again = work.start(spark.readStream.text(str(files)), checkpoint, topic="copy")
        again.awaitTermination()
        work.check_nothing_is_left()
        assert [one["batchId"] for one in again.recentProgress if one["numInputRows"]] == [1]
        assert sorted(map(int, work.bodies("copy"))) == list(range(20))
        assert [(sink.sink, sink.batch) for sink in work.client.sinks()] == [(str(query.id), 1)]
