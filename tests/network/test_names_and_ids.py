"""What connectors and brokers are called, what tells them apart, and what is listed of them."""

from __future__ import annotations

import pytest

from meshq import AddressSettings, Broker, NetworkConnector, NotFoundError, SettingsError, UsageError
from meshq.client import demand_of
from tests.bridge.kit import URL, numbered
from tests.network.kit import World, consuming, known, quiet, start, take, to, until, world
from tests.process import Process

ID = bytes(range(16))


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """The texts of the warnings of this event."""
    return [one.getMessage() for one in caplog.records if getattr(one, "event", "") == event]


def test_a_connector_has_a_name_and_no_two_of_a_broker_have_the_same() -> None:
    uri = f"static:({URL.format('b')})"
    with pytest.raises(SettingsError) as unnamed:
        NetworkConnector("", uri)
    assert unnamed.value.setting == "name"
    with pytest.raises(SettingsError, match="different names for services of the kind 'network_connector'"):
        Broker("a", data_dir=None, services=[NetworkConnector("n", uri), NetworkConnector("n", uri)])


async def test_a_connector_may_have_a_name_as_long_as_that_of_a_queue() -> None:
    async with world() as made:
        await made.start("b")
        await made.start("a", lambda: [to("b", name="n" * 512)])
        await made.brokers["a"].network("n" * 512).wait_for(timeout=30)


async def test_links_are_listed_by_the_name_of_their_connector_at_the_broker_that_has_it() -> None:
    async with world() as made:
        await made.start("b")
        await made.start("c")
        await made.start("a", lambda: [to("b", name="one"), to("b", "c", name="two")])
        for count, name in enumerate(("one", "two"), 1):
            await made.brokers["a"].network(name).wait_for(bridges=count, timeout=30)
        async with made.here("a") as client:
            assert [one.name for one in await client.bridges()] == ["one", "two/1", "two/2"]
        # The other ends list incoming bridges, of which the broker that has the connectors keeps the counts.
        for other, names in {"b": ["one", "two/1"], "c": ["two/2"]}.items():
            async with made.here(other) as client:
                found = await client.bridges()
                assert [(one.name, one.target, one.state, one.carried) for one in found] == [
                    (name, "a", "incoming", 0) for name in names
                ]
                with pytest.raises(NotFoundError, match="there is no bridge"):
                    await client.pause_bridge(names[0])
            with pytest.raises(NotFoundError):
                made.brokers[other].network(names[0])
        await made.stop("a")
        async with made.here("b") as client:

            async def gone() -> bool:
                return not await client.bridges()

            # With their sessions.
            await until(gone)


async def test_of_a_duplex_connector_the_definer_lists_the_connector_and_the_other_end_an_incoming_bridge() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"}, duplex=True)
        for name, listed in {"a": ("to-b", "linked"), "b": ("to-b", "incoming")}.items():
            async with made.here(name) as client:
                assert [(one.name, one.state) for one in await client.bridges()] == [listed]
        async with consuming(made, "a", "back") as (_, there):
            await known_back(made)
            await made.send("b", "back", numbered(3))
            await take(there, 3)


async def known_back(made: World) -> None:
    """Wait until b forwards what is for a."""

    async def consumed() -> bool:
        async with made.here("b") as client:
            return "back" in await client.queues() and (await client.queue("back")).consumers == 1

    await until(consumed)


async def test_brokers_of_one_name_are_told_apart_by_their_ids() -> None:
    async with world() as made:
        life = Process(made.env("z"))
        twin = Broker("a", data_dir=None, acceptors=[URL.format("z")], env=life.env)
        await made.nursery.start(life.live, twin)
        await start(made, {"b": ""})
        await made.start("a", lambda: [to("z")])
        connector, here = made.brokers["a"].network("to-z"), made.brokers["a"]
        await connector.wait_for(timeout=30)
        async with twin.client() as client, client.consumer("q") as there:
            await connector.wait_for(queue="q", consumers=1, timeout=30)
            # If names decided, no way would be open from "a" to "a".
            assert [one.path for one in connector.subscriptions()] == [(twin.node_id.hex(),)]
            await made.send("a", "q", numbered(3))
            assert {one.path for one in await take(there, 3)} == {("a",)}
            shown = await client._context.ask("cluster_nodes", after=0)
        assert (here.name, shown["node_name0"], shown["node_id0"]) == (twin.name, "a", twin.node_id.hex())
        assert here.node_id != twin.node_id
        life.kill()


async def test_subscriptions_are_listed_with_destination_filter_and_way() -> None:
    async with world() as made:
        about = {"network_ttl": 2, "conduit_subscriptions": False}
        await start(made, {"c": "", "b": "c", "a": "b"}, **about)
        async with (
            consuming(made, "c", filter="region = 'us'"),
            made.here("c") as client,
            client.subscribe("t", filter="region = 'emea'"),
        ):
            connector = made.brokers["a"].network("to-b")
            await connector.wait_for(queue="q", consumers=1, timeout=60)
            await connector.wait_for(queue="t", consumers=1, timeout=60)
            way = (made.brokers["c"].node_id.hex(), made.brokers["b"].node_id.hex())
            assert sorted((one.routing, one.address, one.filter, one.path) for one in connector.subscriptions()) == [
                ("anycast", "q", "region = 'us'", way),
                ("multicast", "t", "region = 'emea'", way),
            ]


@pytest.mark.parametrize("durable", [True, False])
async def test_an_id_that_is_given_stays_over_a_restart(durable: bool) -> None:
    async with world(durable=durable) as made:
        await made.start("b", node_id=ID)
        await start(made, {"a": "b"})
        await made.stop("b")
        await made.start("b")
        assert made.brokers["b"].node_id == ID
        async with consuming(made, "b") as (_, there):
            await known(made, "ab", "q", 1)
            (one,) = made.brokers["a"].network("to-b").subscriptions()
            assert one.path == (ID.hex(),)
            await made.send("a", "q", numbered(1))
            await take(there, 1)


async def test_two_brokers_of_one_id_are_not_linked_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as made:
        await made.start("b", node_id=ID)
        await made.start("a", lambda: [to("b")], node_id=ID)
        await until(lambda: bool(logged(caplog, "network_same_id")))
        async with consuming(made, "b") as (_, there):
            await made.send("a", "q", numbered(3))
            await take(there, 0)
        assert await made.count("a", "q") == 3


@pytest.mark.parametrize(
    ("durable", "about", "warned"), [(True, {}, False), (False, {}, True), (False, {"node_id": ID}, False)]
)
async def test_leaving_out_longer_ways_warns_without_an_id_that_stays(
    caplog: pytest.LogCaptureFixture, durable: bool, about: dict[str, object], warned: bool
) -> None:
    async with world(durable=durable) as made:
        settings = {"suppress_duplicate_queue_subscriptions": True}
        await made.start("a", lambda: [to("b", **settings)], **about)
        assert [text.partition(",")[0] for text in logged(caplog, "network_id_changes")] == (
            ["suppress_duplicate_queue_subscriptions of 'to-b' needs an id that stays"] if warned else []
        )


async def test_brokers_of_a_network_keep_their_own_settings_and_serve_without_each_other() -> None:
    async with world() as made:
        settings = {
            name: {"#": AddressSettings(max_delivery_attempts=most, dead_letter_address=f"dead.{name}")}
            for name, most in (("a", 4), ("b", 2))
        }
        await made.start("b", address_settings=settings["b"])
        await made.start("a", lambda: [to("b")], address_settings=settings["a"])
        await made.brokers["a"].network("to-b").wait_for(timeout=30)
        for name, attempts in (("a", 4), ("b", 2)):
            await made.send(name, f"own.{name}", numbered(1))
            async with consuming(made, name, f"own.{name}") as (_, consumer):
                for _ in range(attempts):
                    given = await consumer.receive(timeout=5)
                    assert given is not None
                    await given.nack()
                assert await consumer.receive(timeout=5) is None
        await made.kill("b")
        async with consuming(made, "a") as (_, here):
            await made.send("a", "q", numbered(5))
            await take(here, 5)
        await made.start("b")
        await made.brokers["a"].network("to-b").wait_for(timeout=60)
        await made.kill("a")
        async with consuming(made, "b") as (_, there):
            await made.send("b", "q", numbered(5))
            await take(there, 5)


async def test_a_third_layer_behind_a_concentrator_serves_more_consumers() -> None:
    async with world() as made:
        await start(made, {"z": "", "w": "", "x": "zw", "y": "zw", "a": "xy", "b": "xy"}, network_ttl=2)
        async with consuming(made, "z") as (_, at_z), consuming(made, "w") as (_, at_w):
            for link in ("ax", "ay", "bx", "by", "xz", "xw", "yz", "yw"):
                await known(made, link, "q", 1 if link[0] in "xy" else 2)
            await quiet(1)
            for name in "ab":
                await made.send(name, "q", numbered(20))
            paths: list[tuple[str, ...]] = []
            for consumer in (at_z, at_w):
                while batch := await consumer.receive_many(100, timeout=5):
                    paths += [one.path for one in batch]
                    await consumer.ack(*batch, confirm=True)
        assert len(paths) == 40
        assert {path[0] for path in paths} == {"a", "b"}
        assert {path[1] for path in paths} <= {"x", "y"}


@pytest.mark.parametrize("name", ["x" * 513, "\u00e9" * 300, "two\nlines", "a::b"])
async def test_the_name_of_an_incoming_bridge_is_one_that_a_connector_may_have(name: str) -> None:
    async with world() as made:
        await made.start("b")
        async with made.here("b") as client:
            with pytest.raises(UsageError, match="and names"):
                wrong = {"connector": "c", "broker": "a", "settings": "network_ttl"}
                await demand_of(client, "ab" * 16, b"", most=1, names=wrong)
            with pytest.raises(UsageError, match="and names"):
                await demand_of(client, "ab" * 16, b"", most=1, names={"connector": name, "broker": "a"})
            assert not [one for one in await client.bridges() if one.state == "incoming"]
