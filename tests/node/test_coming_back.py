"""How long whoever lost a broker waits before each attempt to reach it, by the worked example of the waits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from typing import Any

import attrs
import pytest
import trio

from meshq import Bridge, Broker, ClusterConnection, abc, connect
from meshq.abc import Env
from meshq.errors import ConnectionBrokenError
from tests.node.lives import machine

TARGET = "tcp://127.0.0.1:1"
WAITS = {"retry_interval": 0.1, "retry_interval_multiplier": 2, "max_retry_interval": 0.4}
QUERY = "?retryInterval=100&retryIntervalMultiplier=2&maxRetryInterval=400&initialConnectAttempts=-1"


@attrs.define(eq=False)
class Nobody(abc.Network):
    """A network on which nobody is reached."""

    dialed_at: list[float] = attrs.field(factory=list)

    async def connect(self, host: str, port: int) -> Any:
        self.dialed_at.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        raise ConnectionBrokenError(f"{host}:{port} can't be reached", outcome="not_done")

    async def listen(self, host: str, port: int) -> Any:
        raise OSError("nobody listens")


async def test_a_broker_comes_back_whose_address_was_defined_anew_after_its_queues() -> None:
    env = machine()
    async with Broker("b", data_dir="/data/b", env=env) as broker, broker.client() as client:
        # It comes into being on first use, and then somebody relies on it.
        async with client.subscribe("news", name="one", durable=True):
            pass
        await client.create_queue("sub", address="news", routing="multicast")
    async with Broker("b", data_dir="/data/b", env=env) as broker, broker.client() as client:
        await client.send("news", b"x")
        assert [(await client.queue(name)).ready for name in ("news::one", "sub")] == [1, 1]


def client(env: Env) -> AbstractAsyncContextManager[object]:
    return connect(TARGET, env=env, initial_connect_attempts=100, **WAITS)


def client_by_url(env: Env) -> AbstractAsyncContextManager[object]:
    return connect(TARGET + QUERY, env=env)


def link_of_a_cluster(env: Env) -> AbstractAsyncContextManager[object]:
    login = {"user": "u", "password": "p"}
    mesh = ClusterConnection("mesh", connector="me", static_connectors=[TARGET], **login, **WAITS)
    return Broker("hq", data_dir=None, connectors={"me": "inproc://hq"}, services=[mesh], env=env)


def bridge(env: Env) -> AbstractAsyncContextManager[object]:
    return Broker("hq", data_dir=None, services=[Bridge("b", queue="out", target=TARGET, **WAITS)], env=env)


@pytest.mark.parametrize("who", [client, client_by_url, link_of_a_cluster, bridge])
async def test_the_waits_are_0_1_then_0_2_then_0_4_and_stay_there(
    who: Callable[[Env], AbstractAsyncContextManager[object]],
) -> None:
    network = Nobody()
    with trio.move_on_after(1.2):
        async with who(machine(network=network)):
            await trio.sleep_forever()
    assert [later - earlier for earlier, later in pairwise(network.dialed_at)] == pytest.approx([0.1, 0.2, 0.4, 0.4])
