"""Messages of a topic that durable subscriptions want wait for a link that is down, on the disk of their broker."""

from __future__ import annotations

import hashlib

import pytest
import trio

from meshq import NetworkConnector, UsageError
from meshq.address import KEPT_COPIES_END
from meshq.network import _direction
from meshq.network._kept_plan import KeptNames, places_of
from tests.bridge.kit import numbered
from tests.network.kit import World, carried, connectors, known, publish, start, subscribed, take, until, world

PLACE = "b:5000"
ID, OTHER = "a" * 32, "b" * 32


def test_each_direction_of_each_connector_has_names_of_its_own_and_knows_them() -> None:
    names = KeptNames("to-b", PLACE, ID)
    made = [names.name("t", "", 0), names.name("t", "", 1), names.name("t", "a = 1", 0), names.name("t.u", "", 0)]
    digest = hashlib.sha256(PLACE.encode()).hexdigest()[:16]
    assert made[0] == f"$meshq.network.to-b/{digest}.t@{ID}"
    assert len(set(made)) == 4 and all(one.startswith(f"$meshq.network.to-b/{digest}.t") for one in made)
    others = [KeptNames("to-b", PLACE, OTHER).name("t", "", 0), KeptNames("to", PLACE, ID).name("b.t", "", 0)]
    others += ["mine", f"@{ID}"]
    queues = [f"t::{one}" for one in (*made[:3], *others[:1], *others[2:])] + [f"t.u::{made[3]}", "t", ID]
    assert [(one.address, one.name, one.copy) for one in names.among(queues)] == [
        ("t", made[0], 0), ("t", made[1], 1), ("t", made[2], 0), ("t.u", made[3], 0),
    ]  # fmt: skip
    long = names.name("x" * 512, "f", 99)
    assert len(long.encode()) <= 512 and names.among([f"{'x' * 512}::{long}"])[0].copy == 99


def test_a_connector_whose_name_begins_like_another_one_leaves_its_queues_alone() -> None:
    hub, eu = KeptNames("hub", PLACE, ID, [PLACE]), KeptNames("hub.eu", PLACE, ID)
    queues = [f"{topic}::{eu.name(topic, '', 0)}" for topic in ("t", "x" * 512)]
    assert hub.among(queues) == hub.left_behind(queues) == [] and [one.address for one in eu.among(queues)] == [
        "t",
        "x" * 512,
    ]


def test_names_say_for_which_place_messages_wait_and_not_for_which_url_of_a_list() -> None:
    there = ["b:1", "c:1", "d:1,e:1", "b:1,f:1", "b:1 2"]
    urls = ["tcp://B:1?x=1", "tls://c:1", "failover:(tcp://d:1,tcp://e:1)?x=1"]
    urls += ["(tcp://f:1?x=1,tcp://b:1)?y=1", "tcp://b:1?x=2"]
    assert places_of(urls) == there
    assert places_of(["(tcp://E:1,tls://d:1)", urls[1], "tcp://n:1", urls[0]]) == ["d:1,e:1", "c:1", "n:1", "b:1"]
    names = {place: KeptNames("hub", place, ID, there[1:]).at(OTHER).name("t", "f", 7) for place in there}
    assert len(set(names.values())) == len(there)
    queues = [f"t::{name}" for name in names.values()]
    old = [f"t::$meshq.network.hub{number}.t@{ID}" for number in ("", "/1")]
    left = KeptNames("hub", "c:1", ID, there[1:]).left_behind([*queues, *old, "t", f"t::$meshq.network.hub/x.t@{ID}"])
    assert [f"t::{one.name}" for one in left] == [queues[0], *old]
    assert KeptNames("hub", "c:1", ID).left_behind(queues) == []


def test_what_waits_for_one_broker_of_a_list_is_not_for_another_one() -> None:
    several, alone = KeptNames("hub", "b:1,c:1", ID), KeptNames("hub", "b:1", ID)
    queues = [f"t::{several.at(one).name('t', '', 0)}" for one in (ID, OTHER)]
    assert [[f"t::{found.name}" for found in several.at(one).among(queues)] for one in (ID, OTHER)] == [
        [queues[0]],
        [queues[1]],
    ]
    assert all(one.startswith(f"t::{several.beginning}") and len(one) == len(queues[0]) for one in queues)
    # Where there is one place only, its broker may have come back under another id.
    assert alone.at(ID).name("t", "", 0) == alone.at(OTHER).name("t", "", 0) == alone.name("t", "", 0)


def test_a_long_name_of_a_connector_leaves_room_for_the_topic() -> None:
    for connector in ("c" * 512, "c" * 128):
        names = KeptNames(connector, PLACE, ID)
        for topic in ("t", "t" * 512, "ü" * 256):
            made = names.name(topic, "f", KEPT_COPIES_END - 1)
            assert len(made.encode()) <= 512 and [one.name for one in names.among([f"{topic}::{made}"])] == [made]


@pytest.mark.parametrize("kind", ["#0", "#", "-1", "#99999999999-x", f"#99999999999-{'0' * 16}", f"#4000-{'0' * 16}"])
def test_a_name_that_another_broker_claims_and_no_link_gives_is_left_alone(kind: str) -> None:
    names = KeptNames("to-b", PLACE, ID)
    assert names.among([f"t::{names.name('t', '', 0)}{kind}"]) == []


@pytest.mark.parametrize("address", ["t\nERROR nothing", "t" * 3_000, ""])
def test_a_name_at_an_address_that_is_none_is_left_alone(address: str) -> None:
    names = KeptNames("to-b", PLACE, ID, ["c:1"])
    digest = hashlib.sha256(address.encode()).hexdigest()[:16]
    claimed = [f"{address}::{names.beginning}{digest}@{ID}"]
    assert names.among(claimed) == names.left_behind(claimed) == []


async def test_what_is_sent_while_the_link_is_down_comes_when_it_is_up_also_after_a_kill(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"}, connection_ttl=3)
        async with subscribed(made, "b", name="kept", durable=True):
            await known(made, "ab", "t", 1)
        await publish(made, "a", numbered(5))
        await until(lambda: carried(made, "ab") == 5)
        await made.kill("b")
        await publish(made, "a", numbered(5, 5))
        await trio.sleep(5)
        await made.kill("a")
        await made.start("a")
        await publish(made, "a", numbered(5, 10))
        async with made.here("a") as client:
            (queue,) = await client.queues()
            assert queue.startswith("t::$meshq.network.to-b/") and ".t@" in queue
            assert (await client.queue(queue)).ready == 10
            # What nobody else gave a name to is the broker's own.
            with pytest.raises(UsageError, match="own"):
                async with client.consumer(queue):
                    pass
            # Else who may create at its topic could end it: nobody consumes from it now.
            with pytest.raises(UsageError, match="own"):
                await client.unsubscribe("t", queue.partition("::")[2])
            # The link says how many messages wait, and for how long the oldest of them has, from before the kill.
            link = made.brokers["a"].network("to-b")
            before = link.bridges()[0].kept_for
            await trio.sleep(70)
            (found,) = await client.bridges()
            assert (found.kept, found.state) == (10, "connecting") and before is not None and before >= 5
            assert found.kept_for == pytest.approx(before + 70, abs=1) == link.bridges()[0].kept_for
            events = [one.getMessage() for one in caplog.records if getattr(one, "event", "") == "network_link_down"]
            assert any("is down and keeps 10 messages, the oldest for " in one for one in events)
        await made.start("b")
        async with subscribed(made, "b", name="kept", durable=True) as (there,):
            assert {one.body for one in await take(there, 15)} == set(numbered(15))
        (found,) = made.brokers["a"].network("to-b").bridges()
        assert (found.kept, found.kept_for) == (0, None)


async def test_another_broker_of_a_list_takes_nothing_that_waits_for_the_first_one() -> None:
    uri = "static:(failover:(tcp://b:5000,tcp://c:5000)?insecure=true)"
    async with world() as made:
        await made.start("b")
        await made.start("a", lambda: [NetworkConnector("hub", uri, retry_interval=1, connection_ttl=3)])
        async with subscribed(made, "b", name="kept", durable=True):
            await made.brokers["a"].network("hub").wait_for(queue="t", consumers=1, timeout=30)
        await made.kill("b")
        await publish(made, "a", numbered(5))
        await made.start("c")
        await trio.sleep(20)
        (link,) = made.brokers["a"].network("hub").bridges()
        assert (link.state, link.carried, link.kept) == ("linked", 0, 5)
        await made.start("b")
        await made.kill("c")
        async with subscribed(made, "b", name="kept", durable=True) as (there,):
            await take(there, 5, quiet=20)


async def test_another_broker_of_a_list_takes_nothing_that_was_on_its_way_to_the_first_one() -> None:
    uri = "static:(failover:(tcp://b:5000,tcp://c:5000)?insecure=true)"
    async with world() as made:
        await made.start("b")
        await made.start("a", lambda: [NetworkConnector("hub", uri, retry_interval=1, connection_ttl=3)])
        async with subscribed(made, "b", name="kept", durable=True):
            await made.brokers["a"].network("hub").wait_for(queue="t", consumers=1, timeout=30)
        await made.start("c")
        async with subscribed(made, "c", name="kept", durable=True):
            pass

        async def flow() -> None:
            async with made.here("a") as client:
                for first in range(0, 300, 50):
                    await client.send_many("t", numbered(50, first))
                    await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flow)
            await trio.sleep(0.005)
            await made.kill("b")
        await trio.sleep(20)
        (link,) = made.brokers["a"].network("hub").bridges()
        assert link.state == "linked"
        async with subscribed(made, "c", name="kept", durable=True) as (other,):
            await take(other, 0)
        await made.start("b")
        await made.kill("c")
        async with subscribed(made, "b", name="kept", durable=True) as (there,):
            assert {one.body for one in await take(there, 300, quiet=20)} == set(numbered(300))


async def test_along_a_chain_each_broker_keeps_what_its_next_one_can_not_take() -> None:
    async with world() as made:
        graph = {"e": "", "d": "e", "c": "d", "b": "c", "a": "b"}
        await start(made, graph, network_ttl=4, connection_ttl=3)
        async with subscribed(made, "e", name="kept", durable=True):
            await known(made, "ab", "t", 1)
        await made.kill("e")
        await made.kill("c")
        await publish(made, "a", numbered(10))
        await made.start("c")
        # It knows what is wanted behind it before anybody has told it again.
        await until(lambda: carried(made, "cd") == 10)
        (queue,) = await queues(made, "d")
        assert await made.count("d", queue) == 10
        await made.start("e")
        async with subscribed(made, "e", name="kept", durable=True) as (there,):
            assert {one.path for one in await take(there, 10)} == {("a", "b", "c", "d")}
        async with made.here("e") as client:
            await client.unsubscribe("t", "kept")
        await known(made, "ab", "t", 0)
        assert [await queues(made, name) for name in "abcd"] == [[]] * 4


async def test_the_way_back_keeps_them_too_and_forwards_what_nobody_wants_any_more_before_its_queue_goes() -> None:
    async with world() as made:
        await made.start("b")
        await made.start("a", connectors(("b", {"duplex": True, "connection_ttl": 3})))
        async with subscribed(made, "a", name="kept", durable=True):
            await publish(made, "b", [])
            await settled(made, "b", 1)
        await made.kill("a")
        await publish(made, "b", numbered(5))
        await made.start("a")
        async with subscribed(made, "a", name="kept", durable=True) as (here,):
            await take(here, 5)
        # The link breaks, and what it is kept for ends meanwhile.
        made.network.partition(["a"], ["b"])
        await trio.sleep(10)
        async with made.here("a") as client:
            await client.unsubscribe("t", "kept")
        await publish(made, "b", numbered(5))
        made.network.heal()
        await settled(made, "b", 0)


async def test_queues_that_nobody_wants_any_more_go_a_few_at_a_time_whatever_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_direction, "KEPT_QUEUES_MAX", 3)
    monkeypatch.setattr(_direction, "LEAVING_MAX", 2)
    topics = [f"t{number}" for number in range(4)]
    async with world() as made:
        await start(made, {"b": "", "a": "b"}, connection_ttl=3)
        for topic in topics:
            async with subscribed(made, "b", topic=topic, name="kept", durable=True):
                await known(made, "ab", topic, 1)
        made.network.partition(["a"], ["b"])
        async with made.here("b") as client:
            for topic in topics:
                await client.create_queue(f"late.{topic}", address=topic, routing="multicast", durable=False)
                await client.unsubscribe(topic, "kept")
        await trio.sleep(10)
        for topic in topics:
            await publish(made, "a", numbered(2), topic=topic)
        made.network.heal()
        await settled(made, "a", 0)
        assert [await made.count("b", f"late.{topic}") for topic in topics] == [2] * 4


async def queues(made: World, name: str) -> list[str]:
    """The queues of a broker."""
    async with made.here(name) as client:
        return await client.queues()


async def settled(made: World, name: str, count: int) -> None:
    """Wait until a broker has so many queues."""
    with trio.fail_after(60):
        while len(await queues(made, name)) != count:  # noqa: ASYNC110 - looking costs nothing here
            await trio.sleep(0.1)
