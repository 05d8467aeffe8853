"""What a program may wait for at a cluster connection; anything else is refused by name, and nothing is waited for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from meshq import CallTimeoutError, SettingsError
from tests.cluster.kit import mesh


@pytest.mark.parametrize(
    ("wanted", "setting"),
    [
        ({"nodes": "x"}, "nodes"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": 1.0}, "nodes"),
        ({"nodes": True}, "nodes"),
        ({"nodes": None}, "nodes"),
        ({"queue": 7}, "queue"),
        ({"queue": ""}, "queue"),
        ({"queue": "a.*"}, "queue"),
        ({"queue": "q", "consumers": "1"}, "consumers"),
        ({"queue": "q", "consumers": -1}, "consumers"),
        ({"consumers": 1}, "queue"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": math.nan}, "timeout"),
        ({"timeout": None}, "timeout"),
    ],
)
async def test_what_cannot_be_waited_for_is_refused_by_name(wanted: dict[str, Any], setting: str) -> None:
    async with mesh("ab") as nodes:
        await nodes.joined()
        with pytest.raises(SettingsError) as caught:
            await nodes.known("a").wait_for(**wanted)
        assert caught.value.setting == setting


async def test_what_is_there_already_is_not_waited_for() -> None:
    async with mesh("ab") as nodes:
        await nodes.joined()
        for wanted in (
            {},
            {"nodes": 2, "timeout": 0},
            {"queue": "q"},
            {"queue": "q", "consumers": 0, "timeout": math.inf},
        ):
            await nodes.known("a").wait_for(**wanted)
        with pytest.raises(CallTimeoutError, match="0 of 1 consumers of 'q'"):
            await nodes.known("a").wait_for(queue="q", consumers=1, timeout=0)


async def test_what_comes_true_as_the_time_is_up_is_no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async with mesh("ab") as nodes:
        await nodes.joined()
        cluster = nodes.known("a")
        looks = iter([1, 2])
        monkeypatch.setattr(cluster, "nodes", lambda: next(looks))
        await cluster.wait_for(nodes=2, timeout=0)
        assert not list(looks)
