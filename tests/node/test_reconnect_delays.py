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
from tests.node.wires import URL, wires
from tests.process import End

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


@pytest.mark.parametrize("given", ["settings", "url"])
@pytest.mark.parametrize("end", ["killed", "power"])
async def test_a_client_that_has_lost_its_broker_dials_at_once_and_then_waits_the_same(end: End, given: str) -> None:
    async with wires() as here:
        url = f"{URL}&{QUERY[1:]}" if given == "url" else URL
        settings = {"env": here.env} if given == "url" else {"env": here.env, **WAITS}
        async with connect(url, **settings) as client:
            await client.send("q", b"1")
            # A connection that was hardly there is not dialed at once.
            await trio.sleep(20)
            lost = trio.current_time()
            await here.node.end(end)
            for stream in here.dials.streams:
                stream.close()
            await trio.sleep(2)
            dialed = [at for at in here.dials.dialed_at if at >= lost]
            assert dialed[0] - lost < 0.02
            # What a dial takes itself is a few milliseconds.
            waits = [later - earlier for earlier, later in pairwise(dialed)]
            assert waits[:5] == pytest.approx([0.1, 0.2, 0.4, 0.4, 0.4], abs=0.01)
            await here.node.start()
            await client.send("q", b"2")
            assert (await client.queue("q")).ready == 2


async def test_a_bridge_that_has_lost_its_target_dials_at_once_and_then_waits_the_same() -> None:
    async with wires() as here:
        mine = Bridge("b", queue="out", target=URL, **WAITS)
        async with Broker("near", data_dir=None, services=[mine], env=here.env) as near, near.client() as client:
            await client.send("out", b"1")
            await trio.sleep(20)
            assert mine.statistics().carried == 1
            lost = trio.current_time()
            await here.node.end("killed")
            for stream in here.dials.streams:
                stream.close()
            await trio.sleep(2)
            dialed = [at for at in here.dials.dialed_at if at >= lost]
            assert dialed[0] - lost < 0.02
            waits = [later - earlier for earlier, later in pairwise(dialed)]
            assert waits[:5] == pytest.approx([0.1, 0.2, 0.4, 0.4, 0.4], abs=0.01)
            await here.node.start()
            await client.send("out", b"2")
            await trio.sleep(1)
            assert mine.statistics().carried == 2
