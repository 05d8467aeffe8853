"""What a broker says of itself: the same in process and over a connection."""

from __future__ import annotations

import attrs
import pytest

from meshq import Broker, Permissions, RemoteProtocolError, Security, SecurityError, connect
from meshq.limits import MIB
from meshq.statistics import BrokerStatistics
from tests.node.lives import machine


@pytest.mark.parametrize("data_dir", ["/data/hq", None])
async def test_state_and_counters_are_the_same_in_process_and_over_a_connection(data_dir: str | None) -> None:
    env = machine()
    async with (
        Broker("hq", data_dir=data_dir, env=env, queues=["orders"]) as broker,
        connect("inproc://hq", env=env) as client,
    ):
        await client.send_many("orders", [b"1", b"2", b"3"])
        async with client.consumer("orders", window=1) as consumer:
            await consumer.receive(timeout=5)
            here, there = broker.statistics(), await client.broker()
        assert there == here
        assert (there.name, there.state, there.durable) == ("hq", "active", data_dir is not None)
        assert (there.ready, there.delivering, there.consumers, there.queues) == (2, 1, 1, 1)
        assert (there.journal is None) is (data_dir is None)
        assert there.journal is None or there.journal.state == "open"


@pytest.mark.parametrize(("given", "limit"), [({}, 100 * MIB), ({"memory_limit": 30 * MIB}, 30 * MIB)])
async def test_the_bound_of_memory_is_a_quarter_of_the_machines_unless_it_is_given(
    given: dict[str, int], limit: int
) -> None:
    async with Broker("hq", data_dir=None, env=machine(memory_bytes=400 * MIB), **given) as broker:
        assert broker.statistics().memory_limit == limit


async def test_it_takes_the_permission_to_manage() -> None:
    everything = {"app"}
    security = Security(
        users={"ops": "secret", "app": "secret"},
        roles={"ops": {"ops"}, "app": everything},
        permissions={
            "#": Permissions(send=everything, consume=everything, create=everything),
            "activemq.management": Permissions(manage={"ops"}),
        },
    )
    async with Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"], security=security) as broker:
        async with connect(broker.urls[0], user="ops", password="secret") as client:
            assert (await client.broker()).name == "hq"
        async with connect(broker.urls[0], user="app", password="secret") as client:
            with pytest.raises(SecurityError):
                await client.broker()


def test_what_a_newer_broker_says_beyond_this_is_left_out_and_what_is_missing_is_told() -> None:
    known = {field.name: 0 for field in attrs.fields(BrokerStatistics) if field.name != "journal"}
    found = BrokerStatistics.of({**known, "more": 1})
    assert (found.values(), found.journal) == (known, None)
    with pytest.raises(KeyError, match="queues"):
        BrokerStatistics.of({name: value for name, value in known.items() if name != "queues"})


async def test_an_answer_that_lacks_something_breaks_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker("hq", data_dir=None) as broker, broker.client() as client:
        assert broker._node is not None
        monkeypatch.setattr(broker._node.core.settings.host, "describe", dict)
        with pytest.raises(RemoteProtocolError, match="lack"):
            await client.broker()
