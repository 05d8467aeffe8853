"""The programs of the pages about Spark run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.real.spark.kit import job, reads_streams, texts

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), reads_streams]
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "with-spark.md"


def test_the_programs_of_the_page_run(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    with job(spark, queues=["orders"]) as work:
        work.client.send_many("orders", texts(range(100)))
        names: dict[str, Any] = {}
        for block in blocks:
            # What is relative is so to the folder in which Spark was started.
            block = block.replace("checkpoints/", f"{tmp_path}/checkpoints/")
            exec(block.replace("tcp://127.0.0.1:61616", work.url), names)
            work.check_nothing_is_left()
        assert sorted(work.bodies("large-orders")) == [str(number) for number in range(91, 100)]
        assert spark.table("copies").count() == 9
        spark.sql("drop table copies")
    said = capsys.readouterr().out
    assert "9 rows in 1 batches" in said and "3 of the large orders" in said
    assert (
        "has the queue 'orders': no consumer takes from it" in said
        and "2 events were seen by Spark, and shipped" in said
    )


def test_the_programs_of_the_tutorial_run_one_after_the_other(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = PAGE.with_name("spark-tutorial.md").read_text(encoding="utf-8")
    with job(spark) as work:
        names: dict[str, Any] = {}
        for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S):
            block = block.replace("checkpoints/", f"{tmp_path}/checkpoints/")
            exec(block.replace("tcp://127.0.0.1:61616", work.url), names)
            work.check_nothing_is_left()
        assert work.client.cursors() == []
    said = capsys.readouterr().out
    assert "6 shops are busy" in said and "7 shops are busy" in said and "visits 0 before it" in said
