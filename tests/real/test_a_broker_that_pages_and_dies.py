"""A real broker process is killed in the middle of paging: what was durable is whole, what was not is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from meshq import connect
from meshq.errors import MeshqError
from qa.broker_process import BrokerProcess
from tests.real.test_a_broker_that_dies import QUEUE, drain

#: Together several times what memory may take.
LARGE = bytes(40_000)
COUNT = 60
MEMORY = 1 << 20


async def work(url: str, confirmed: dict[bytes, None]) -> None:
    """Send what is durable and what is not, in turn."""
    async with connect(url, reconnect_attempts=0, call_timeout=5.0) as client:
        for number in range(COUNT):
            await client.send("passing", LARGE, durable=False)
            body = b"%d " % number + LARGE
            await client.send(QUEUE, body)
            confirmed[body] = None


def life(directory: Path, at: dict[str, int], confirmed: dict[bytes, None]) -> object:
    """One life that ends at a call of the disk; returns how often it made which."""
    broker = BrokerProcess(str(directory), at=at, memory_limit=MEMORY)
    try:
        url = broker.next_report()
        if isinstance(url, str) and url.startswith("tcp"):
            try:
                trio.run(work, url, confirmed)
            except (MeshqError, ExceptionGroup):
                return broker.stop()
        return broker.stop()
    finally:
        broker.close()


async def passing(url: str) -> int:
    async with connect(url) as client:
        return (await client.queue("passing")).ready if "passing" in await client.queues() else 0


def check(directory: Path, confirmed: dict[bytes, None]) -> None:
    broker = BrokerProcess(str(directory), memory_limit=MEMORY)
    try:
        url = broker.next_report()
        assert isinstance(url, str) and url.startswith("tcp"), url
        assert not list((directory / "paging").iterdir())
        assert trio.run(passing, url) == 0
        found = trio.run(drain, url)
        assert len(found) == len(set(found)) and confirmed.keys() <= set(found)
        assert all(body.endswith(LARGE) for body in found)
    finally:
        broker.stop()
        broker.close()


@pytest.mark.processes
@pytest.mark.real
@pytest.mark.parametrize("share", [0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99])
def test_what_was_confirmed_is_there_and_nothing_of_the_pages(tmp_path: Path, share: float) -> None:
    calls = life(tmp_path / "whole", {}, {})
    assert isinstance(calls, dict) and list((tmp_path / "whole" / "paging").iterdir())
    confirmed: dict[bytes, None] = {}
    life(tmp_path / "cut", {"write": max(1, int(calls["write"] * share))}, confirmed)
    check(tmp_path / "cut", confirmed)
