"""All that a message may have arrives: directly, after a restart, and over a bridge."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from meshq import Bridge, Broker, Client, Delivery
from meshq.abc import Env
from meshq.bridge._forwarding_plan import time_left
from tests.node.lives import TrioWall, machine

PROPERTIES = {
    "text": "αβγ",
    "empty": "",
    "bytes": b"\x00\xff",
    "yes": True,
    "no": False,
    "zero": 0,
    "least": -(2**63),
    "most": 2**63 - 1,
    "fraction": -0.125,
    "huge": 1e308,
    "nothing": None,
}
HEADERS: dict[str, Any] = {
    "correlation_id": "answer to 7",
    "reply_to": "replies::mine",
    "content_type": "text/plain",
    "priority": 7,
    "group": "emea",
    "duplicate_id": b"mine",
    "ttl": 1_000,
}


def check(delivery: Delivery | None, sent_at: float) -> None:
    """It has everything that was sent, and nothing else."""
    assert delivery is not None
    assert delivery.body == b"42 umbrellas"
    assert delivery.properties == PROPERTIES
    for name, value in delivery.properties.items():
        assert type(value) is type(PROPERTIES[name]), name
    found = {name: getattr(delivery, name) for name in HEADERS if name != "ttl"}
    assert found == {name: value for name, value in HEADERS.items() if name != "ttl"}
    assert delivery.expiration == pytest.approx(sent_at + HEADERS["ttl"], abs=0.1)
    assert delivery.durable is True


@asynccontextmanager
async def client_of(name: str, env: Env, **settings: Any) -> AsyncIterator[Client]:
    async with Broker(name, data_dir=f"/data/{name}", env=env, **settings) as broker, broker.client() as client:
        yield client


async def test_properties_of_every_type_and_every_header_arrive_directly_and_after_a_restart() -> None:
    wall = TrioWall()
    env = machine(wall=wall)
    sent_at = wall.now_ms() / 1000
    async with client_of("near", env) as client:
        for queue in ("now", "later"):
            await client.send(queue, b"42 umbrellas", properties=PROPERTIES, **HEADERS)
        async with client.consumer("now") as consumer:
            check(await consumer.receive(timeout=5), sent_at)
    async with client_of("near", env) as client, client.consumer("later") as consumer:
        check(await consumer.receive(timeout=5), sent_at)


@pytest.mark.parametrize("large", [False, True])
async def test_properties_of_every_type_and_every_header_arrive_over_a_bridge(
    monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    if large:
        # What is over the bound of an ordinary message is streamed, which is a way of its own.
        monkeypatch.setattr("meshq.bridge._forwarding_plan.is_large", lambda delivery: True)
    wall = TrioWall()
    env = machine(wall=wall)
    sent_at = wall.now_ms() / 1000
    bridge = Bridge("b", queue="out", target="inproc://far", forwarding_address="in")
    async with client_of("far", env) as there, client_of("near", env, services=[bridge]) as here:
        await here.send("out", b"42 umbrellas", properties=PROPERTIES, **HEADERS)
        async with there.consumer("in") as consumer:
            check(await consumer.receive(timeout=5), sent_at)


def test_a_bridge_sends_on_what_is_left_of_a_time_to_live_and_leaves_it_to_the_other_side_to_end_it() -> None:
    assert time_left(None, now=7.0) is None
    assert time_left(10.0, now=7.0) == 3.0
    assert time_left(10.0, now=12.0) == 0.001
