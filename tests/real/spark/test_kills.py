"""A query whose processes are killed at its hooks copies each message once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.real.spark.kit import reads_streams

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), reads_streams]


def test_each_message_comes_once_whichever_hook_is_killed(spark: Any, tmp_path: Path) -> None:
    from qa.spark._killed_query import KilledQuery

    query = KilledQuery(spark, tmp_path)
    try:
        query.send()
        # An abort takes a writer that was killed, too.
        for hook in ("latest_offset_done", "read", "abort", "sink_commit_done"):
            query.strikes.arm(hook)
            failure = query.run()
            assert query.strikes.struck(hook) and failure, hook
        assert query.run(most=500) == ""
        assert query.problems() == []
    finally:
        query.close()
