"""Replay: what was forwarded and lost its consumer goes back to where it is wanted, and comes to rest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from meshq import Message, Queues
from tests.bridge.kit import numbered
from tests.network.kit import World, carried, consuming, known, quiet, start, take, world

BACK: dict[str, Any] = {"duplex": True, "replay": True}


@asynccontextmanager
async def left_at(at: str, graph: dict[str, str], **settings: Any) -> AsyncIterator[World]:
    """A network in which ten messages of the broker ``a`` have come to another one, where nobody consumes any more."""
    async with world() as made:
        await start(made, graph, **{**BACK, **settings})
        async with consuming(made, at, window=1) as _:
            await quiet(2)
            await made.send("a", "q", numbered(10))
            await quiet(2)
        await quiet(2)
        assert await made.count(at, "q") == 10
        yield made


async def test_what_has_lost_its_consumer_goes_back_to_where_it_came_from_with_a_ttl_of_one() -> None:
    async with left_at("b", {"b": "", "a": "b"}) as made, consuming(made, "a") as (_, here):
        got = await take(here, 10)
        # It is as if it had never gone.
        assert {one.path for one in got} == {()} and sorted(one.body for one in got) == sorted(numbered(10))
        assert await made.count("b", "q") == 0


async def test_without_replay_it_waits_where_it_is() -> None:
    async with left_at("b", {"b": "", "a": "b"}, replay=False) as made, consuming(made, "a") as (_, here):
        await take(here, 0)
        assert await made.count("b", "q") == 10


async def test_it_goes_back_and_on_to_another_broker_and_its_path_has_no_detour() -> None:
    async with left_at("b", {"b": "", "c": "", "a": "bc"}, network_ttl=2) as made, consuming(made, "c") as (_, there):
        got = await take(there, 10)
        assert {one.path for one in got} == {("a",)}


async def test_it_goes_back_over_several_brokers() -> None:
    graph = {"d": "", "c": "d", "b": "c", "a": "b"}
    async with left_at("d", graph, network_ttl=3) as made, consuming(made, "a") as (_, here):
        await take(here, 10)
        assert [await made.count(name, "q") for name in "bcd"] == [0, 0, 0]


async def test_the_ttl_is_of_the_way_without_what_was_taken_back() -> None:
    """At ``b`` one hop is used; over ``a`` to ``d`` there are two."""
    graph = {"b": "", "d": "", "c": "d", "a": "bc"}
    async with left_at("b", graph, network_ttl=3) as made, consuming(made, "d") as (_, there):
        assert {one.path for one in await take(there, 10)} == {("a", "c")}


async def test_it_does_not_go_back_where_it_could_not_go_on() -> None:
    graph = {"b": "", "d": "", "c": "d", "a": "bc"}
    async with left_at("b", graph, network_ttl=1) as made, consuming(made, "d") as (_, there):
        await take(there, 0)
        assert await made.count("b", "q") == 10


async def test_a_consumer_here_that_accepts_it_keeps_it_here_and_one_that_does_not_does_not() -> None:
    """Also one that takes nothing now."""
    messages = [Message(str(number).encode(), properties={"half": number % 2}) for number in range(10)]
    async with world() as made:
        await start(made, {"b": "", "a": "b"}, **BACK)
        async with consuming(made, "b", window=1):
            await known(made, "ab", "q", 1)
            await made.send("a", "q", messages)
            await quiet(2)
        async with consuming(made, "b", filter="half = 1", window=1) as (_, there), consuming(made, "a") as (_, here):
            assert {one.body for one in await take(here, 5)} == {b"0", b"2", b"4", b"6", b"8"}
            await take(there, 5)


async def test_nothing_goes_back_to_a_consumer_that_does_not_accept_it() -> None:
    async with left_at("b", {"b": "", "a": "b"}) as made, consuming(made, "a", filter="half = 1") as (_, here):
        await take(here, 0)
        assert (await made.count("b", "q"), carried(made, "ab")) == (10, 10)


@pytest.mark.slow
async def test_what_nobody_accepts_comes_to_rest() -> None:
    """Over more than one hop the filters behind are not known."""
    graph = {"d": "", "c": "d", "b": "c", "a": "b"}
    async with world() as made, AsyncExitStack() as stack:
        await start(made, graph, network_ttl=3, **BACK)
        for name in "ad":
            await stack.enter_async_context(consuming(made, name, filter="half = 1"))
        await quiet(2)
        await made.send("b", "q", numbered(2))
        await quiet(8)
        before = [carried(made, link) for link in ("ab", "bc", "cd")]
        assert sum(before) < 2 * 100
        await quiet(5)
        assert [carried(made, link) for link in ("ab", "bc", "cd")] == before
        assert sum([await made.count(name, "q") for name in graph]) == 2


async def test_a_static_inclusion_is_no_demand_to_go_back_for() -> None:
    """Neither at the next broker nor behind it."""
    static: dict[str, Any] = {"statically_included": [Queues("q")], "network_ttl": 2, **BACK}
    async with world() as made:
        await start(made, {"c": "", "b": "c", "a": "bc"}, **static)
        await made.send("a", "q", numbered(10))
        await quiet(5)
        assert [await made.count(name, "q") for name in "abc"] == [0, 5, 5]
        assert [carried(made, link) for link in ("ab", "ac", "bc")] == [5, 5, 10]
        async with consuming(made, "b") as (_, there):
            await take(there, 10)


@pytest.mark.parametrize("conduit", [True, False])
async def test_a_consumer_that_comes_and_goes_is_followed_each_time(conduit: bool) -> None:
    async with left_at("b", {"b": "", "a": "b"}, conduit_subscriptions=conduit) as made:
        for at, other in ("ab", "ba"):
            async with consuming(made, at, window=1):
                await quiet(3)
                assert [await made.count(name, "q") for name in (at, other)] == [10, 0]
            await quiet(1)
