"""Near consumers before far ones: priorities by distance, a full prefetch, and the longer ways that are left out."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.bridge.kit import numbered
from tests.network.kit import connectors, consuming, forward, known, quiet, start, take, world

DECREASE = {"decrease_network_consumer_priority": True}


async def test_the_highest_priority_is_served_until_its_prefetch_is_full_then_equal_ones_in_turn() -> None:
    async with world() as made, AsyncExitStack() as stack:
        await made.start("a")
        settings = [{"priority": -5, "window": 10}, {"priority": -7, "window": 10}, {"priority": -7, "window": 10}]
        first, second, third = [(await stack.enter_async_context(consuming(made, "a", **one)))[1] for one in settings]
        async with made.here("a") as client:
            for body in numbered(30):
                await client.send("q", body)
        got = [[one.body for one in await each.receive_many(100, timeout=1)] for each in (first, second, third)]
        assert got[0] == numbered(30)[:10]
        assert sorted(got[1:]) == [numbered(30)[10::2], numbered(30)[11::2]]


async def test_the_direct_way_is_taken_until_its_prefetch_is_full_then_the_two_longer_ones_in_turn() -> None:
    graph = {"e": "", "f": "e", "a": "f", "d": "e", "c": "d", "b": "eac"}
    async with world() as made:
        await start(made, graph, network_ttl=3, prefetch=5, **DECREASE)
        async with consuming(made, "e") as (_, there):
            for link in ("be", "ba", "bc"):
                await known(made, link, "q", 1)
            await quiet(1)
            assert [forward(made, link).open[0].priority for link in ("be", "ba", "bc")] == [-5, -7, -7]
            # The direct link hangs: what it has is not confirmed.
            made.network.partition(["b"], ["e"])
            await made.send("b", "q", numbered(11))
            await quiet(2)
            made.network.heal()
            got = await take(there, 11)
            paths = Counter(one.path for one in got)
            assert paths == {("b",): 5, ("b", "a", "f"): 3, ("b", "c", "d"): 3}
            direct = [one.body for one in got if len(one.path) == 1]
            assert sorted(direct) == sorted(numbered(11)[:5])
            turns = [sorted(one.body for one in got if one.path[1:2] == (name,)) for name in ("a", "c")]
            rest = numbered(11)[5:]
            assert sorted(turns) == sorted([sorted(rest[::2]), sorted(rest[1::2])])


async def test_the_message_after_a_thousand_goes_elsewhere() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"}, **DECREASE)
        async with consuming(made, "b") as (_, there), consuming(made, "a", priority=-100) as (_, last):
            await known(made, "ab", "q", 1)
            made.network.partition(["a"], ["b"])
            await made.send("a", "q", numbered(1_001))
            await take(last, 1, quiet=1)
            made.network.heal()
            await take(there, 1_000)


@pytest.mark.parametrize(
    ("ttl", "settings", "stuck"),
    [
        (2, DECREASE, 5),
        (2, {**DECREASE, "suppress_duplicate_queue_subscriptions": True}, 0),
        (1, DECREASE, 0),
    ],
)
async def test_an_overload_goes_round_and_is_stuck_when_the_consumer_leaves_unless_the_longer_way_is_left_out(
    ttl: int, settings: dict[str, Any], stuck: int
) -> None:
    async with world() as made:
        await start(made, {"b": "", "c": "b", "a": "bc"}, network_ttl=ttl, prefetch=5, **settings)
        async with consuming(made, "b"):
            await known(made, "cb", "q", 1)
            await known(made, "ab", "q", 1)
            await quiet(1)
            told = [made.brokers["a"].network(f"to-{name}").subscriptions() for name in "bc"]
            assert [len(forward(made, link).open) for link in ("ab", "ac")] == [1, int(bool(stuck))]
            assert [len(one) for one in told] == [1, int(ttl > 1)]
            made.network.partition(["b"], ["a", "c"])
            await made.send("a", "q", numbered(10))
            await quiet(2)
        # The broker between hears first that the consumer has left, and says so.
        made.network.heal()
        made.network.partition(["a"], ["b"])
        await quiet(5)
        made.network.heal()
        await quiet(5)
        assert await made.count("c", "q") == stuck
        assert sum([await made.count(name, "q") for name in "abc"]) == 10


@pytest.mark.parametrize(("here", "differs"), [(["decrease"], True), (["decrease", "suppress"], True), ([], False)])
async def test_where_one_connector_lacks_a_setting_of_the_others_a_longer_way_comes_first_and_a_hint_is_logged(
    here: list[str], differs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    names = {"decrease": "decrease_network_consumer_priority", "suppress": "suppress_duplicate_queue_subscriptions"}
    direct = {names[name]: True for name in here}
    links = [("b", {"network_ttl": 2, **direct}), ("c", {"network_ttl": 2})]
    async with world() as made:
        await start(made, {"b": "", "c": "b"}, network_ttl=2)
        await made.start("a", connectors(*links))
        async with consuming(made, "b"):
            await known(made, "ab", "q", 1)
            await known(made, "ac", "q", 1)
            near, far = (forward(made, link).open[0].priority for link in ("ab", "ac"))
            assert (near, far) == (-5 if differs else 0, 0)
    said = [one for one in caplog.records if getattr(one, "event", "") == "network_settings_differ"]
    hints = [one.getMessage() for one in said if one.name == "meshq.network"]
    assert len(hints) == len(here)
    assert all("for 'to-b' and not for 'to-c'" in hint for hint in hints)
    # Connectors of two brokers that lead to one are compared there.
    there = [one.getMessage() for one in said if one.name == "meshq.node"]
    assert len(there) == int(bool(here))
    assert sum(hint.count("for 'to-b' of 'a' and not for 'to-b' of 'c'") for hint in there) == len(here)


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)])
async def test_along_a_chain_each_broker_compares_what_leads_to_it_with_what_leads_on(
    before: bool, after: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as made:
        await made.start("c")
        await made.start("b", connectors(("c", {"suppress_duplicate_queue_subscriptions": after})))
        await made.start("a", connectors(("b", {"suppress_duplicate_queue_subscriptions": before})))
        await made.brokers["a"].network("to-b").wait_for(timeout=30)
    (hint,) = [one.getMessage() for one in caplog.records if getattr(one, "event", "") == "network_settings_differ"]
    pair = ("'to-b' of 'a'", "'to-c'") if before else ("'to-c'", "'to-b' of 'a'")
    assert "for {} and not for {}".format(*pair) in hint
