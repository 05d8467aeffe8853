"""What a program may wait for at a cluster connection; anything else is refused by name, and nothing is waited for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from meshq import CallTimeoutError, SettingsError
from tests.cluster.kit import mesh


@pytest.mark.parametrize(
    ("wanted", "setting"),
    [
        ({"nodes": "x"}, "nodes"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": 1.0}, "nodes"),
        ({"nodes": True}, "nodes"),
        ({"nodes": None}, "nodes"),
        ({"queue": 7}, "queue"),
        ({"queue": ""}, "queue"),
        ({"queue": "a.*"}, "queue"),
        ({"queue": "q", "consumers": "1"}, "consumers"),
        ({"queue": "q", "consumers": -1}, "consumers"),
        ({"consumers": 1}, "queue"),
        ({"queues": 1}, "queue"),
        ({"queue": "q", "queues": -1}, "queues"),
        ({"queue": "q", "queues": "1"}, "queues"),
        ({"address": ""}, "address"),
        ({"address": "a.#"}, "address"),
        ({"address": "a::q"}, "address"),
        ({"exactly": 1}, "exactly"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": math.nan}, "timeout"),
        ({"timeout": None}, "timeout"),
    ],
)
async def test_what_cannot_be_waited_for_is_refused_by_name(wanted: dict[str, Any], setting: str) -> None:
    async with mesh("ab") as nodes:
        await nodes.joined()
        with pytest.raises(SettingsError) as caught:
            await nodes.known("a").wait_for(**wanted)
        assert caught.value.setting == setting


@pytest.mark.parametrize("address", ["", "a.#", "a::q", 7])
async def test_the_address_of_listed_queues_is_an_address(address: Any) -> None:
    async with mesh("ab") as nodes:
        await nodes.joined()
        with pytest.raises(SettingsError) as caught:
            nodes.known("a").bindings(address)
        assert caught.value.setting == "address"


async def test_what_is_there_already_is_not_waited_for() -> None:
    async with mesh("ab") as nodes:
        await nodes.joined()
        for wanted in (
            {},
            {"nodes": 2, "timeout": 0},
            {"queue": "q"},
            {"queue": "q", "consumers": 0, "timeout": math.inf},
        ):
            await nodes.known("a").wait_for(**wanted)
        with pytest.raises(CallTimeoutError, match="0 of 1 consumers of 'q'"):
            await nodes.known("a").wait_for(queue="q", consumers=1, timeout=0)


async def test_queues_and_consumers_of_a_name_or_an_address_are_counted_on_all_nodes() -> None:
    async with mesh("ab") as nodes:
        await nodes.joined()
        known = nodes.known("a")
        async with nodes.client("a") as here, nodes.client("b") as there:
            for client, names in ((here, ("one", "two")), (there, ("two",))):
                await client.create_address("work", routing="anycast")
                for name in names:
                    await client.create_queue(name, address="work")
            await known.wait_for(address="work", queues=3, timeout=1)
            await known.wait_for(queue="two", queues=2, exactly=True, timeout=1)
            async with here.consumer("work::one"), there.consumer("work::two"):
                await known.wait_for(address="work", queues=3, consumers=2, exactly=True, timeout=1)
                await known.wait_for(queue="two", address="work", consumers=1, exactly=True, timeout=1)
                # Reached, and not exactly.
                await known.wait_for(address="work", queues=2, consumers=1, timeout=0)
                with pytest.raises(CallTimeoutError, match="2 of 1 consumers of the address 'work', exactly"):
                    await known.wait_for(address="work", consumers=1, exactly=True, timeout=0)
                with pytest.raises(CallTimeoutError, match="3 of 4 queues of the address 'work', 2 of 0 consumers"):
                    await known.wait_for(address="work", queues=4, timeout=0)
            # When the last of them has gone.
            await known.wait_for(address="work", consumers=0, exactly=True, timeout=1)
            await known.wait_for(address="other", queues=0, exactly=True, timeout=0)


async def test_exactly_is_about_nodes_where_nothing_else_is_counted() -> None:
    async with mesh("abc") as nodes:
        await nodes.joined()
        known = nodes.known("a")
        with pytest.raises(CallTimeoutError, match="3 of 2 nodes, exactly"):
            await known.wait_for(nodes=2, exactly=True, timeout=0)
        await nodes.stop("c")
        await known.wait_for(nodes=2, exactly=True, timeout=1)


async def test_what_comes_true_as_the_time_is_up_is_no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async with mesh("ab") as nodes:
        await nodes.joined()
        cluster = nodes.known("a")
        looks = iter([1, 2])
        monkeypatch.setattr(cluster, "nodes", lambda: next(looks))
        await cluster.wait_for(nodes=2, timeout=0)
        assert not list(looks)
