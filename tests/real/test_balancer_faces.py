"""Balancers as programs of every face see them: in the program of the broker, and over a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from meshq import (
    BalancerTarget,
    Broker,
    BrokerBalancer,
    NotActiveError,
    NotFoundError,
    SettingsError,
    StaticPool,
    aio,
    blocking,
    connect,
)
from tests.real.aio_kit import asyncio_test
from tests.real.blocking_kit import our_threads


def service() -> BrokerBalancer:
    pool = StaticPool(["tcp://127.0.0.1:1"], check_period=0.2, quorum_timeout=0.1, local_target_enabled=True)
    return BrokerBalancer("lb", target_key="client_id", local_target_filter="^here.*", pool=pool)


SETTINGS: dict[str, Any] = {"data_dir": None, "acceptors": ["tcp://127.0.0.1:0", "tcp://127.0.0.1:0?redirect_to=lb"]}


def is_local(found: BalancerTarget | None, url: str) -> None:
    assert found is not None and (found.url, found.local) == (url, True)


def figures(found: Any) -> None:
    """What is plain in process, whatever the face."""
    about = found.statistics()
    assert (found.name, about.name, about.target_key, len(about.targets)) == ("lb", "lb", "client_id", 2)
    assert found.explain_route("here-1").outcome == "local"
    found.set_local_target_filter(None)
    found.set_target_key_filter("^.{2}")
    assert found.explain_route("here-1").key == "he" and repr(found).startswith("<BrokerBalancer 'lb'")
    with pytest.raises(SettingsError):
        found.set_target_key_filter("(a+)+b")


async def test_on_trio_and_in_a_thread() -> None:
    async with Broker("hq", services=[service()], **SETTINGS) as broker:
        is_local(await broker.balancer("lb").target("here"), broker.urls[0])
        figures(broker.balancer("lb"))
        async with connect(broker.urls[1], client_id="x") as client:
            assert client.statistics().node_name == "hq"
            assert (await client.balancer("lb").statistics()).accepted == 1
    with pytest.raises(NotActiveError):
        await broker.balancer("lb").target("x")
    async with Broker("hq", services=[service()], **SETTINGS).run_in_thread() as hosted:
        is_local(await hosted.balancer("lb").target("here"), hosted.urls[0])
        figures(hosted.balancer("lb"))
        with pytest.raises(NotFoundError):
            hosted.balancer("other")
    assert our_threads() == []


def test_without_async() -> None:
    with blocking.Broker("hq", services=[service()], **SETTINGS) as broker:
        is_local(broker.balancer("lb").target("here"), broker.urls[0])
        with blocking.connect(broker.urls[1], client_id="x") as client:
            found = client.balancer("lb")
            is_local(found.target("here"), broker.urls[0])
            assert found.statistics().accepted == 1 and found.explain_route("here").outcome == "local"
            found.set_local_target_filter("^there$")
            found.set_target_key_filter(None)
            assert found.explain_route("there").outcome == "local" and repr(found) == "<ClientBalancer 'lb'>"
        figures_after: Callable[[Any], None] = figures
        broker.balancer("lb").set_local_target_filter("^here.*")
        figures_after(broker.balancer("lb"))
    assert our_threads() == []


@asyncio_test
async def test_with_asyncio() -> None:
    async with aio.Broker("hq", services=[service()], **SETTINGS) as broker:
        is_local(await broker.balancer("lb").target("here"), broker.urls[0])
        async with aio.connect(broker.urls[1], client_id="x") as client:
            found = client.balancer("lb")
            is_local(await found.target("here"), broker.urls[0])
            assert (await found.statistics()).accepted == 1
            assert (await found.explain_route("here")).outcome == "local"
            await found.set_local_target_filter("^here.*")
            await found.set_target_key_filter(None)
            assert repr(found) == "<ClientBalancer 'lb'>"
        figures(broker.balancer("lb"))


async def test_a_target_that_takes_its_time_is_waited_for() -> None:
    pool = StaticPool(["tcp://127.0.0.1:1"], quorum_timeout=0.2)
    async with Broker("hq", data_dir=None, services=[BrokerBalancer("lb", pool=pool)]) as broker:
        began = trio.current_time()
        assert await broker.balancer("lb").target("x") is None
        assert 0.2 <= trio.current_time() - began < 5
