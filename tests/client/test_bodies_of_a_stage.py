"""Bodies that lie side by side are cut into runs by their bytes and their number."""

from __future__ import annotations

from typing import Any, cast

import pytest

from meshq import limits
from meshq.client._connector_calls import send_bodies
from meshq.client.transactions._stage import Stage
from meshq.errors import SettingsError
from meshq.wire import RunBytes, body_sizes


class Gathering:
    """A stage that keeps what it is given."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []

    async def _send_run(self, address: str, run: RunBytes) -> None:
        self.runs.append(body_sizes(run))


async def sent(sizes: list[int]) -> list[list[int]]:
    """The sizes of the bodies of each run."""
    offsets = [7]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    stage = Gathering()
    await send_bodies(cast("Stage", cast("Any", stage)), "orders", offsets, memoryview(bytes(offsets[-1])))
    return stage.runs


async def test_one_large_body_is_a_run_and_the_small_ones_around_it_share_theirs() -> None:
    large = limits.RUN_BYTES_TARGET + 1
    assert await sent([10] * 100 + [large] + [10] * 100) == [[10] * 100, [large], [10] * 100]


async def test_a_run_has_no_more_messages_and_no_more_bytes_than_it_may() -> None:
    runs = await sent([1] * (limits.RUN_MESSAGES_MAX + 1))
    assert [len(run) for run in runs] == [limits.RUN_MESSAGES_MAX, 1]
    third = limits.RUN_BYTES_TARGET // 3
    assert [len(run) for run in await sent([third] * 7)] == [3, 3, 1]
    assert await sent([0, 0]) == [[0, 0]]
    assert await sent([]) == []


async def test_a_body_over_the_limit_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(SettingsError, match="body"):
        await sent([1, limits.MESSAGE_BYTES_MAX + 1])
