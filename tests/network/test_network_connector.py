"""Messages flow to consumers at other brokers, and nowhere else."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio

from meshq import (
    CallTimeoutError,
    Message,
    NetworkConnector,
    NotActiveError,
    NotFoundError,
    Queues,
    SettingsError,
    Topics,
)
from meshq.bridge import Forwarder
from meshq.network import _direction
from tests.bridge.kit import URL, numbered
from tests.network.kit import World, consuming, known, quiet, start, take, to, until, world


async def counts(made: World, names: str, queue: str = "q") -> list[int]:
    """Messages in a queue of each of these brokers."""
    return [await made.count(name, queue) for name in names]


async def test_a_directed_link_carries_messages_one_way() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"})
        async with consuming(made, "b") as (_, there):
            await known(made, "ab", "q", 1)
            await made.send("a", "q", numbered(10))
            got = await take(there, 10)
            assert sorted(one.body for one in got) == sorted(numbered(10))
            assert {one.path for one in got} == {("a",)}
        async with consuming(made, "a", "back") as (_, here):
            await made.send("b", "back", numbered(10))
            await take(here, 0)
        assert await counts(made, "ab", "back") == [0, 10]


async def test_demand_from_before_the_link_is_learned_at_the_link() -> None:
    async with world() as made:
        await start(made, {"b": ""})
        async with consuming(made, "b") as (_, there):
            await start(made, {"a": "b"})
            await known(made, "ab", "q", 1)
            await made.send("a", "q", numbered(3))
            await take(there, 3)


async def test_messages_wait_for_demand_and_go_where_it_is_then() -> None:
    async with world() as made:
        await start(made, {"c": "", "b": "", "a": "bc"})
        await made.send("a", "q", numbered(10))
        await quiet()
        assert await counts(made, "abc") == [10, 0, 0]
        async with consuming(made, "b") as (_, there):
            await take(there, 10)
        await known(made, "ab", "q", 0)
        async with consuming(made, "c") as (_, elsewhere):
            await known(made, "ac", "q", 1)
            await made.send("a", "q", numbered(10))
            await take(elsewhere, 10)
        assert await counts(made, "abc") == [0, 0, 0]


@pytest.mark.parametrize(("ttl", "left", "path"), [(2, 10, None), (3, 0, ("a", "b", "c"))])
async def test_a_chain_of_three_hops_needs_a_ttl_of_three(ttl: int, left: int, path: tuple[str, ...] | None) -> None:
    async with world() as made:
        await start(made, {"e": "", "d": "", "c": "de", "b": "c", "a": "b"}, network_ttl=ttl)
        await made.send("a", "q", numbered(10))
        await quiet()
        assert await counts(made, "abcde") == [10, 0, 0, 0, 0]
        async with consuming(made, "e") as (_, there):
            got = await take(there, 10 - left)
            assert {one.path for one in got} == ({path} if path else set())
            assert await counts(made, "a") == [left]
        if path is None:
            return
        # The consumer moves, and what is sent from then on follows it.
        for link in ("ce", "bc", "ab"):
            await known(made, link, "q", 0)
        async with consuming(made, "d") as (_, there):
            await known(made, "ab", "q", 1)
            await made.send("a", "q", numbered(10))
            assert {one.path for one in await take(there, 10)} == {("a", "b", "c")}


@pytest.mark.parametrize(("ttl", "at"), [(1, "b"), (2, "c"), (3, "d")])
async def test_a_message_goes_as_far_as_the_network_ttl(ttl: int, at: str) -> None:
    static = [Queues("q")]
    async with world() as made:
        await start(made, {"d": "", "c": "d", "b": "c", "a": "b"}, network_ttl=ttl, statically_included=static)
        await made.send("a", "q", numbered(10))
        await quiet()
        assert await counts(made, "abcd") == [10 if name == at else 0 for name in "abcd"]


async def test_no_network_consumer_is_left_when_the_last_consumer_is_gone() -> None:
    async with world() as made:
        await start(made, {"c": "", "b": "c", "a": "b"}, network_ttl=2)
        async with consuming(made, "c"), consuming(made, "c"):
            await known(made, "bc", "q", 2)
            await known(made, "ab", "q", 1)
        await known(made, "ab", "q", 0)
        await known(made, "bc", "q", 0)
        for name in "abc":
            async with made.here(name) as client:
                for queue in await client.queues():
                    assert (await client.queue(queue)).consumers == 0, (name, queue)
        assert made.brokers["a"].network("to-b").subscriptions() == ()


async def test_a_browser_is_no_demand() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"})
        await made.send("a", "q", numbered(3))
        async with made.here("b") as client:
            await client.create_queue("q")
            async with client.consumer("q", browse=True) as browser:
                assert await browser.receive(timeout=5) is None
        assert await counts(made, "ab") == [3, 0]
        assert made.brokers["a"].network("to-b").subscriptions() == ()


@pytest.mark.parametrize(("conduit", "shares"), [(True, [6, 3, 3]), (False, [4, 4, 4])])
async def test_twelve_messages_are_shared_by_subscriptions(conduit: bool, shares: list[int]) -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"}, conduit_subscriptions=conduit)
        async with (
            consuming(made, "b") as (_, two),
            consuming(made, "b") as (_, three),
            consuming(made, "a") as (_, one),
        ):
            await known(made, "ab", "q", 2)
            await quiet()
            await made.send("a", "q", numbered(12))
            assert [len(await take(each, share)) for each, share in zip((one, two, three), shares, strict=True)]
            [subscription] = made.brokers["a"].network("to-b").subscriptions()
            assert (subscription.consumers, subscription.hops) == (2, 1)
            assert made.brokers["a"].network("to-b").bridges()[0].carried == sum(shares[1:])


async def test_without_conduit_a_filter_travels_and_with_it_it_does_not() -> None:
    messages = [Message(b"%d" % number, properties={"region": "us"}) for number in range(10)]
    for conduit, at_b, stuck in ((False, 10, 0), (True, 5, 5)):
        async with world() as made:
            await start(made, {"c": "", "b": "", "a": "bc"}, conduit_subscriptions=conduit)
            async with (
                consuming(made, "b", filter="region = 'us'") as (_, us),
                consuming(made, "c", filter="region = 'emea'") as (_, emea),
            ):
                await known(made, "ab", "q", 1)
                await known(made, "ac", "q", 1)
                await made.send("a", "q", messages)
                await take(us, at_b)
                await take(emea, 0)
                assert await counts(made, "abc") == [0, 0, stuck]


async def test_static_inclusion_moves_messages_without_demand_and_leaves_them_there() -> None:
    async with world() as made:
        graph = {"e": "", "d": "", "c": "de", "b": "c", "a": "b"}
        await start(made, graph, network_ttl=5, statically_included=[Queues("q")])
        await made.send("a", "q", numbered(10))
        await quiet()
        assert await counts(made, "abcde") == [0, 0, 0, 5, 5]
        async with consuming(made, "e") as (_, there):
            await take(there, 5)
        async with consuming(made, "d") as (_, there):
            await take(there, 5)


@pytest.mark.parametrize(("at", "count", "expected"), [("b", 10, [0, 0, 5, 5]), ("c", 9, [3, 0, 3, 3])])
async def test_static_inclusion_both_ways_never_sends_back(at: str, count: int, expected: list[int]) -> None:
    async with world() as made:
        graph = {"e": "", "d": "", "c": "de", "b": "c"}
        await start(made, graph, network_ttl=5, statically_included=[Queues("q")], duplex=True)
        await quiet()
        await made.send(at, "q", numbered(count))
        await quiet()
        assert await counts(made, "bcde") == expected


async def test_in_a_triangle_half_goes_round_each_way_and_stops() -> None:
    async with world() as made:
        graph = {"c": "", "b": "c", "a": "bc"}
        await start(made, graph, network_ttl=2, statically_included=[Queues("q")], duplex=True)
        await quiet()
        await made.send("a", "q", numbered(100))
        await quiet()
        assert await counts(made, "abc") == [0, 50, 50]
        async with consuming(made, "b") as (_, there):
            assert {one.path for one in await take(there, 50)} == {("a", "c")}
        assert await counts(made, "abc") == [0, 0, 50]
        async with consuming(made, "c") as (_, there):
            assert {one.path for one in await take(there, 50)} == {("a", "b")}


async def test_duplex_is_both_directions_over_one_connection() -> None:
    async with world() as made:
        await start(made, {"hub": ""})
        await start(made, {"x": ["hub"], "y": ["hub"]}, duplex=True, network_ttl=2)  # type: ignore[dict-item]
        assert made.brokers["hub"].statistics().connections == 2
        async with consuming(made, "y", "to-y") as (_, there), consuming(made, "hub", "to-hub") as (_, middle):
            await made.brokers["x"].network("to-hub").wait_for(queue="to-y", consumers=1, timeout=60)
            await made.brokers["x"].network("to-hub").wait_for(queue="to-hub", consumers=1, timeout=60)
            await made.send("x", "to-y", numbered(10))
            await made.send("x", "to-hub", numbered(10))
            assert {one.path for one in await take(there, 10)} == {("x", "hub")}
            assert {one.path for one in await take(middle, 10)} == {("x",)}


async def test_what_passes_and_what_does_not() -> None:
    settings = {"dynamically_included": [Queues("TRADE.STOCK.>")], "excluded": [Queues("TRADE.STOCK.NYSE.*")]}
    queues = ("TRADE.STOCK.NASDAQ.IBM", "TRADE.STOCK.NYSE.IBM", "ORDERS")
    async with world() as made:
        await start(made, {"b": "", "a": "b"}, **settings)
        async with consuming(made, "b", queues[0]), consuming(made, "b", queues[1]), consuming(made, "b", queues[2]):
            await known(made, "ab", queues[0], 1)
            assert [one.address for one in made.brokers["a"].network("to-b").subscriptions()] == [queues[0]]
            for queue in queues:
                await made.send("a", queue, [b"x"])
            await quiet()
            assert [await made.count("a", queue) for queue in queues] == [0, 1, 1]


async def test_thirty_messages_are_spread_over_three_connectors() -> None:
    async with world() as made:
        await made.start("b")
        await made.start("a", lambda: [to("b", name=f"link0{number}") for number in (1, 2, 3)])
        async with consuming(made, "b") as (_, there):
            links = [made.brokers["a"].network(f"link0{number}") for number in (1, 2, 3)]
            for link in links:
                await link.wait_for(queue="q", consumers=1, timeout=60)
            await made.send("a", "q", numbered(30))
            got = await take(there, 30)
            assert len({one.body for one in got}) == 30
            assert [link.bridges()[0].carried for link in links] == [10, 10, 10]


async def test_local_consumers_come_first_until_they_are_full() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"}, decrease_network_consumer_priority=True)
        async with consuming(made, "b") as (_, there), consuming(made, "a", window=10) as (_, here):
            await known(made, "ab", "q", 1)
            await made.send("a", "q", numbered(15))
            await take(there, 5)
            await take(here, 10)


async def test_a_connection_to_oneself_is_found_and_carries_nothing() -> None:
    async with world() as made:
        await made.start("a", lambda: [to("a", statically_included=[Queues("q")])])
        connector = made.brokers["a"].network("to-a")
        await until(lambda: connector.bridges()[0].state == "itself")
        await made.send("a", "q", numbered(3))
        await quiet()
        async with made.here("a") as client:
            found = await client.queue("q")
            assert (found.ready, found.consumers) == (3, 0)


async def test_a_link_that_comes_back_goes_on_and_nothing_is_lost_or_twice() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"})
        async with consuming(made, "b"):
            await known(made, "ab", "q", 1)
        for _ in range(3):
            await made.kill("b")
            await made.send("a", "q", [])
            await made.start("b")
        async with consuming(made, "b") as (_, there):
            await known(made, "ab", "q", 1)
            await made.send("a", "q", numbered(2_000))
            await take(there, 2_000)
        await made.kill("a")
        await made.start("a")
        await made.send("a", "q", numbered(500))
        async with consuming(made, "b") as (_, there):
            got = await take(there, 500)
            assert len({one.body for one in got}) == 500


async def test_a_broker_of_the_same_name_and_another_id_is_another_broker_and_the_reverse() -> None:
    async with world(durable=False) as made:
        await start(made, {"b": "", "a": "b"})
        before = made.brokers["b"].node_id
        async with consuming(made, "b"):
            await known(made, "ab", "q", 1)
        await made.stop("b")
        await made.start("b")
        assert made.brokers["b"].node_id != before
        async with consuming(made, "b") as (_, there):
            connector, path = made.brokers["a"].network("to-b"), (made.brokers["b"].node_id.hex(),)
            await until(lambda: [one.path for one in connector.subscriptions()] == [path])
            await known(made, "ab", "q", 1)
            await made.send("a", "q", numbered(5))
            await take(there, 5)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"network_ttl": 0}, "network_ttl"),
        ({"network_ttl": 17}, "network_ttl"),
        ({"duplex": 1}, "duplex"),
        ({"prefetch": 0}, "prefetch"),
        ({"replay": 1}, "replay"),
        ({"statically_included": [Queues("TEST.>")]}, "statically_included"),
        ({"statically_included": [Topics("TEST.*")]}, "statically_included"),
        ({"excluded": ["T"]}, "excluded"),
        ({"excluded": "T"}, "excluded"),
        ({"no_such_setting": 1}, "no_such_setting"),
    ],
)
def test_a_setting_that_is_not_allowed_is_refused_by_name(settings: dict[str, object], name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        NetworkConnector("n", f"static:({URL.format('b')})", **settings)  # type: ignore[arg-type]
    assert caught.value.setting == name


@pytest.mark.parametrize("uri", ["tcp://b:1", "static:tcp://b:1", "static:()", "static:(b)", 7])
def test_a_uri_that_names_no_brokers_is_refused(uri: object) -> None:
    with pytest.raises(SettingsError, match="uri="):
        NetworkConnector("n", uri)  # type: ignore[arg-type]


def test_the_defaults_are_those_of_the_documentation() -> None:
    settings = NetworkConnector("n", "static://(tcp://localhost:61002,tcp://localhost:61003)").settings
    assert settings.urls == ("tcp://localhost:61002", "tcp://localhost:61003")
    assert (settings.network_ttl, settings.duplex, settings.prefetch, settings.replay) == (1, False, 1_000, False)
    assert settings.conduit_subscriptions
    assert not settings.decrease_network_consumer_priority
    assert not settings.suppress_duplicate_queue_subscriptions
    assert (settings.dynamically_included, settings.excluded, settings.statically_included) == ((), (), ())


async def test_a_connector_that_is_not_there_or_not_served_is_told() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"})
        connector = made.brokers["a"].network("to-b")
        with pytest.raises(NotFoundError, match="to-c"):
            made.brokers["a"].network("to-c")
        await made.stop("a")
        with pytest.raises(NotActiveError):
            await connector.wait_for()


async def test_waiting_for_what_does_not_come_says_how_far_it_came() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"})
        with pytest.raises(CallTimeoutError, match="1 of 1 links, 0 of 2 consumers of 'q'"):
            await made.brokers["a"].network("to-b").wait_for(queue="q", consumers=2, timeout=3)
        with pytest.raises(SettingsError, match="bridges"):
            await made.brokers["a"].network("to-b").wait_for(bridges=-1)
        await trio.lowlevel.checkpoint()


async def test_queues_that_are_there_for_demand_elsewhere_alone_go_with_it_when_they_are_empty() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"})
        await made.send("a", "own", numbered(1))
        for queue in ("own", "reply.1", "reply.2"):
            async with consuming(made, "b", queue) as (_, there):
                await known(made, "ab", queue, 1)
                if queue == "own":
                    await take(there, 1)
            await known(made, "ab", queue, 0)
            if queue == "reply.2":
                # What comes to it meanwhile stays, until it is taken.
                await made.send("a", queue, numbered(1))
        await quiet(1)
        async with made.here("a") as client:
            assert sorted(await client.queues()) == ["own", "reply.2"]
        assert await made.count("a", "reply.2") == 1


async def test_a_broker_with_the_id_of_this_one_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as made:
        await made.start("a", lambda: [to("a")])
        await until(lambda: any(getattr(one, "event", "") == "network_same_id" for one in caplog.records))
    assert "has the id of this one" in caplog.text


async def test_what_is_not_forwarded_is_tried_again_after_times_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[float] = []

    def refused(*given: object, **about: object) -> None:
        tried.append(trio.current_time())
        raise NotFoundError("no such queue")

    monkeypatch.setattr(_direction, "network_consumer", refused)
    async with world() as made:
        about = {"retry_interval": 1, "retry_interval_multiplier": 2, "max_retry_interval": 5}
        await start(made, {"b": "", "a": "b"}, **about)
        async with consuming(made, "b"):
            await until(lambda: len(tried) == 6)
    assert [round(later - one) for one, later in pairwise(tried)] == [1, 2, 4, 5, 5]


async def test_what_is_sent_again_and_again_and_breaks_before_it_is_confirmed_waits_ever_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken: list[float] = []
    sent: list[Forwarder] = []

    async def receive(forwarder: Forwarder) -> None:
        await trio.lowlevel.checkpoint()

    async def send(forwarder: Forwarder) -> bool:
        """The first send of an attempt is taken for sent, and breaks at the second one; the fourth is confirmed."""
        if forwarder in sent:
            broken.append(trio.current_time())
            raise CallTimeoutError("a send was not confirmed in time")
        sent.append(forwarder)
        forwarder.confirmed += 10 * (len(sent) == 4)
        return True

    monkeypatch.setattr(Forwarder, "receive", receive)
    monkeypatch.setattr(Forwarder, "send", send)
    async with world() as made:
        about = {"retry_interval": 1, "retry_interval_multiplier": 2, "max_retry_interval": 60}
        await start(made, {"b": "", "a": "b"}, **about)
        async with consuming(made, "b"):
            await until(lambda: len(broken) == 6)
    assert [round(later - one) for one, later in pairwise(broken)] == [1, 2, 4, 1, 2]
