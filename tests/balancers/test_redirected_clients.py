"""Clients of an acceptor that redirects, and the brokers at which they are then."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from meshq import (
    BrokerBalancer,
    FailedOver,
    FirstElement,
    Reattached,
    Redirected,
    RoundRobin,
    UseAnotherServerError,
)
from tests.balancers.kit import balanced, machines, node_of, place, places, pool_of, so_far, url_of
from tests.cluster.kit import until


async def test_thirty_clients_over_three_targets_are_ten_each_and_are_really_there() -> None:
    async with balanced(policy=RoundRobin(), cache_timeout=0.0) as made:
        assert await places(made, 30) == dict.fromkeys("abc", 10)
        async with made.dial() as client:
            there = node_of(client)
            await client.send("q", b"x")
            async with made.brokers[there].client() as inside:
                assert (await inside.queue("q")).ready == 1
        about = made.balancer().statistics()
        assert (about.redirected, about.accepted, about.refused) == (31, 0, 0)
        assert made.brokers["front"].statistics().sessions == 0


async def test_a_redirected_client_says_so_and_has_no_session_at_the_front() -> None:
    async with balanced("a") as made, made.dial() as client:
        events = client.events()
        await made.crash("a")
        await made.start("a")
        await until(lambda: client.statistics().connected == 2)
        told = await so_far(events)
        (sent,) = [event for event in told if isinstance(event, Redirected)]
        assert sent.url == url_of("a") and sent.peer.endswith(":5001")
        assert [type(one) for one in told if isinstance(one, Redirected | FailedOver)] == [Redirected, FailedOver]


async def test_two_clients_of_one_id_get_one_target_also_from_two_machines() -> None:
    async with balanced(target_key="client_id") as made:
        there = await place(made, "till-7")
        for host in ("shop", "store"):
            assert {await place(made, "till-7", host=host) for _ in range(4)} == {there}
        assert len({await place(made, f"till-{number}") for number in range(3)}) > 1


async def test_without_a_key_given_the_address_counts_and_not_the_port() -> None:
    async with balanced() as made:
        assert len({await place(made, f"c{number}") for number in range(5)}) == 1
        assert len({await place(made, "c", host=f"shop{number}") for number in range(3)}) == 3


async def test_without_the_wanted_key_there_is_one_target() -> None:
    async with balanced(target_key="sni_host") as made:
        assert len({await place(made, f"c{number}", host=f"h{number}") for number in range(4)}) == 1
        assert made.balancer().explain_route("DEFAULT").steps[-1].startswith("the cache has")


async def test_a_target_that_is_lost_is_replaced_and_the_client_begins_at_its_own_url_again() -> None:
    async with balanced(policy=FirstElement(), target_key="client_id") as made, made.dial(client_id="x") as client:
        assert node_of(client) == "a"
        await made.crash("a")
        await until(lambda: node_of(client) == "b")
        await client.send("q", b"x")
        assert made.balancer().statistics().redirected >= 2


async def test_a_target_that_stops_in_peace_sends_its_clients_to_the_front() -> None:
    async with balanced(policy=FirstElement()) as made, made.dial() as client:
        await made.stop("a")
        await until(lambda: node_of(client) == "b")
        assert await place(made, "other") == "b"


async def test_a_lost_link_is_resumed_where_the_client_was_sent() -> None:
    async with balanced() as made, made.dial(connection_ttl=30) as client:
        there = node_of(client)
        events = client.events()
        made.network.reset("shop", there)
        await until(lambda: client.statistics().resumed == 1)
        assert node_of(client) == there
        assert type((await so_far(events))[-1]) is Reattached


async def test_a_client_that_no_target_is_there_for_comes_again_until_one_is() -> None:
    async with machines() as made:
        pool = pool_of("a", quorum_timeout=0.5)
        await made.start("front", BrokerBalancer("lb", pool=pool, policy="first_element"), redirect_to="lb")
        with pytest.raises(UseAnotherServerError, match="no quorum: 0 targets are ready, and 1 are needed") as caught:
            async with made.dial():
                pass
        assert caught.value.outcome == "not_done"
        found = []

        async def arrive() -> None:
            async with made.dial(initial_connect_attempts=100) as client:
                found.append(node_of(client))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(arrive)
            await trio.sleep(3)
            await made.start("a")
        assert found == ["a"]


@pytest.mark.parametrize(("appears", "found"), [(1.0, "a"), (5.0, "")])
async def test_a_client_waits_for_the_quorum_for_three_seconds_and_no_longer(appears: float, found: str) -> None:
    async with machines() as made:
        pool = pool_of("a", check_period=0.1)
        assert pool.quorum_timeout == 3.0
        await made.start("front", BrokerBalancer("lb", pool=pool), redirect_to="lb")
        began = trio.current_time()

        async def arrive() -> None:
            if found:
                async with made.dial() as client:
                    assert node_of(client) == found
                assert 1.0 <= trio.current_time() - began < 1.5
                return
            with pytest.raises(UseAnotherServerError):
                async with made.dial(connection_ttl=30):
                    pass
            assert 3.0 <= trio.current_time() - began < 3.1
            assert made.balancer().statistics().waiting == 0

        async with trio.open_nursery() as nursery:
            nursery.start_soon(arrive)
            await trio.sleep(0.5)
            assert made.balancer().statistics().waiting == 1
            await trio.sleep(appears - 0.5)
            await made.start("a")


async def test_a_client_that_goes_while_it_waits_is_forgotten() -> None:
    async with machines() as made:
        await made.start("front", BrokerBalancer("lb", pool=pool_of("a", quorum_timeout=60.0)), redirect_to="lb")
        with trio.move_on_after(10):
            async with made.dial(call_timeout=60, connection_ttl=60):
                raise AssertionError("there is no target")
        await until(lambda: made.balancer().statistics().waiting == 0)
        await made.start("a")
        await made.ready("a")
        assert made.balancer().statistics().redirected == 0


async def test_the_broker_itself_accepts_in_place() -> None:
    async with machines() as made:
        await made.start("a")
        pool = pool_of("a", local_target_enabled=True)
        balancer = BrokerBalancer("lb", pool=pool, policy="round_robin", cache_timeout=0.0)
        await made.start("front", balancer, redirect_to="lb")
        await made.ready("a", "front")
        assert await places(made, 10) == {"a": 5, "front": 5}
        about = made.balancer().statistics()
        assert (about.redirected, about.accepted) == (5, 5)


async def test_data_gravity_a_client_with_all_urls_finds_the_broker_of_its_key_and_the_others_refuse_it() -> None:
    async with machines() as made:
        for name in ("foo", "bar", "baz"):
            balancer = BrokerBalancer(
                "parts", target_key="client_id", target_key_filter="^.{3}", local_target_filter=f"^{name.upper()}.*"
            )
            await made.start(name, balancer, redirect_to="parts")
        urls = [url_of(name, 5_001) for name in ("foo", "bar", "baz")]
        listed = f"({','.join(urls)})"
        for key, home in (("FOO123", "foo"), ("BAR1", "bar"), ("BAZ", "baz")):
            assert await place(made, key, url=listed) == home
        for key in ("BAR1", "FO", ""):
            with pytest.raises(UseAnotherServerError, match="there is no pool: another broker serves it"):
                await place(made, key, url=urls[0])
        # A producer and a consumer with one key meet.
        async with made.dial(listed, client_id="BAR-producer") as one, made.dial(listed, client_id="BAR-2") as two:
            await one.send("q", b"x")
            async with two.consumer("q") as consumer:
                message = await consumer.receive(timeout=1)
                assert message is not None and message.body == b"x"


async def test_two_brokers_that_balance_each_other_have_a_client_at_home_within_two_hops() -> None:
    async with machines() as made:
        for name, other in ("ab", "ba"):
            balancer = BrokerBalancer("lb", pool=pool_of(other), policy="first_element")
            # Each is reached by the other at the acceptor that redirects, and at no other one.
            acceptors = [f"{url_of(name)}?insecure=true&redirect_to=lb"]
            await made.start(name, balancer, acceptors=acceptors)
        await made.ready("b", broker="a")
        await made.ready("a", broker="b")
        async with made.dial(url_of("a")) as client:
            assert node_of(client) == "b"
        assert made.balancer(broker="a").statistics().redirected == 1
        assert made.balancer(broker="b").statistics().accepted == 1


async def test_symmetric_balancers_on_all_brokers_agree_and_redirect_once() -> None:
    async with machines() as made:
        for name in "abc":
            balancer = BrokerBalancer(
                "lb",
                target_key="client_id",
                pool=pool_of("abc", local_target_enabled=True),
                policy="consistent_hash",
            )
            await made.start(name, balancer, acceptors=[f"{url_of(name)}?insecure=true&redirect_to=lb"])
        for name in "abc":
            await made.ready(*"abc", broker=name)
        homes = Counter()
        for number in range(30):
            key = f"c{number}"
            found = {await place(made, key, url=url_of(name)) for name in "abc"}
            assert len(found) == 1
            homes.update(found)
        assert set(homes) == set("abc")
        # Of three ways to each home one begins there.
        assert sum(made.balancer(broker=name).statistics().redirected for name in "abc") == 60


@pytest.mark.parametrize("policy", ["round_robin", "random", "least_connections"])
async def test_symmetric_balancers_that_do_not_agree_redirect_once_all_the_same(policy: str) -> None:
    async with machines() as made:
        for name in "abcd":
            pool = pool_of("abcd", local_target_enabled=True)
            balancer = BrokerBalancer("lb", pool=pool, policy=policy, cache_timeout=0.0)
            await made.start(name, balancer, acceptors=[f"{url_of(name)}?insecure=true&redirect_to=lb"])
        for name in "abcd":
            await made.ready(*"abcd", broker=name)
        for number in range(20):
            await place(made, f"c{number}", url=url_of("abcd"[number % 4]))
        about = [made.balancer(broker=name).statistics() for name in "abcd"]
        assert sum(one.accepted for one in about) == 20 and sum(one.redirected for one in about) <= 20


async def test_a_client_that_is_sent_round_gives_the_attempt_up_after_three_redirects() -> None:
    async with machines() as made:
        ring = "abcde"
        for name, other in zip(ring, ring[1:] + ring[:1], strict=True):
            balancer = BrokerBalancer("lb", pool=pool_of(other), policy="first_element")
            await made.start(name, balancer, acceptors=[f"{url_of(name)}?insecure=true&redirect_to=lb"])
        for name, other in zip(ring, ring[1:] + ring[:1], strict=True):
            await made.ready(other, broker=name)
        with pytest.raises(UseAnotherServerError, match="the 4th that sends this client on") as caught:
            async with made.dial(url_of("a")):
                pass
        assert caught.value.outcome == "not_done"


async def test_a_broker_that_is_another_one_since_its_last_probe_has_the_client_after_two_redirects() -> None:
    async with machines() as made:
        for name, other in ("ab", "ba"):
            balancer = BrokerBalancer("lb", pool=pool_of(other, check_period=60.0), policy="first_element")
            await made.start(name, balancer, acceptors=[f"{url_of(name)}?insecure=true&redirect_to=lb"])
        await made.ready("b", broker="a")
        await made.ready("a", broker="b")
        # In memory only, it has another id now, which is not known at b.
        await made.crash("a")
        await made.start("a")
        await made.ready("b", broker="a")
        client = made.dial(url_of("a"))
        events = client.events()
        async with client:
            assert node_of(client) == "a"
        told = [event.url for event in await so_far(events) if isinstance(event, Redirected)]
        assert told == [url_of("b"), url_of("a")]


async def test_one_acceptor_redirects_and_the_other_does_not() -> None:
    async with balanced("a") as made:
        async with made.dial(url_of("front")) as client:
            assert node_of(client) == "front"
        async with made.dial() as client:
            assert node_of(client) == "a"
        async with made.brokers["front"].client() as client:
            assert node_of(client) == "front"


async def test_an_acceptor_that_redirects_tells_no_topology_and_a_redirected_client_goes_by_its_own_url() -> None:
    async with balanced("ab", policy=FirstElement()) as made:
        async with made.dial(use_topology=True) as client:
            assert node_of(client) == "a"
            await made.crash("a")
            await until(lambda: node_of(client) == "b")
        async with machines() as home:
            balancer = BrokerBalancer("lb", local_target_filter=".*")
            await home.start("front", balancer, redirect_to="lb")
            async with home.dial() as client:
                assert node_of(client) == "front" and client.topology() == ()
            async with home.dial(url_of("front")) as client:
                assert [node.name for node in client.topology()] == ["front"]
