"""Nodes that have left, are away or were given up: what they don't get, what waits for them, and how they come back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio

from meshq import CallTimeoutError, Delivery, Message, NodeJoined, NodeLeft
from meshq.settings import AddressSettings
from tests.cluster.hosts import Hosts, hosts
from tests.cluster.kit import bodies, until

FAST: dict[str, Any] = {"connection_ttl": 2.0, "check_period": 0.5}
#: Links that give up soon.
FINITE: dict[str, Any] = {**FAST, "reconnect_attempts": 2, "retry_interval": 0.1, "max_retry_interval": 0.1}


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def state(nodes: Hosts, at: str) -> str:
    (peer,) = nodes.known(at).peers()
    return peer.state


async def end(nodes: Hosts, how: str, name: str) -> None:
    """End a node: in peace, by a crash, or so that nothing is heard of it any more."""
    if how == "stopped":
        await nodes.stop(name)
    elif how == "killed":
        await nodes.crash(name)
    else:
        nodes.network.partition([name], [other for other in nodes.urls if other != name] + ["client of a"])


ENDS = {"stopped": "left", "killed": "away", "silent": "away"}


@pytest.mark.parametrize("how", ENDS)
async def test_what_is_sent_goes_to_who_is_there_and_not_to_a_node_that_is_gone(how: str) -> None:
    async with hosts(cluster=FAST) as nodes:
        here: list[Delivery] = []
        there: list[Delivery] = []
        await nodes.nursery.start(nodes.serve_queue, "b", there)
        await nodes.nursery.start(nodes.serve_queue, "a", here)
        await nodes.known("a").wait_for(nodes=2, queue="q", consumers=2, timeout=5)
        await nodes.send("a", numbered(10))
        await until(lambda: len(here) + len(there) == 10)
        assert len(there) == 5
        await end(nodes, how, "b")
        await until(lambda: state(nodes, "a") == ENDS[how])
        assert nodes.known("a").nodes() == nodes.known("a").consumers("q") == 1
        with pytest.raises(CallTimeoutError, match=r"1 of 2 nodes after 0\.5 s") as told:
            await nodes.known("a").wait_for(nodes=2, timeout=0.5)
        assert told.value.outcome == "not_done"
        await nodes.send("a", numbered(100, 10))
        await until(lambda: len(here) == 105)
        assert nodes.known("a").peers()[0].waiting == 0
        # It comes back, and has its share again.
        if how == "silent":
            nodes.network.heal()
        else:
            await nodes.start("b")
        await nodes.known("a").wait_for(nodes=2, queue="q", consumers=2, timeout=10)
        assert state(nodes, "a") == "linked"
        await nodes.send("a", numbered(10, 110))
        await until(lambda: len(there) == 10)


@pytest.mark.parametrize("how", ENDS)
async def test_strict_leaves_an_absent_node_its_share_but_not_one_that_has_left(how: str) -> None:
    async with hosts(mode="strict", cluster=FAST, broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        await end(nodes, how, "b")
        await until(lambda: state(nodes, "a") == ENDS[how])
        await nodes.send("a", numbered(10))
        assert nodes.known("a").peers()[0].waiting == (0 if how == "stopped" else 5)


@pytest.mark.parametrize("mode", ["on_demand", "strict"])
@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_what_only_a_gone_node_has_waits_for_it(how: str, mode: str) -> None:
    async with hosts(mode=mode, cluster=FAST) as nodes:
        async with nodes.client("b") as client:
            await client.create_queue("theirs")
            await client.create_queue("sub", address="news", routing="multicast")
        await nodes.joined()
        await end(nodes, how, "b")
        await until(lambda: state(nodes, "a") == ENDS[how])
        settings = {"auto_create_queues": False}
        async with nodes.client("a") as client:
            await client.set_address_settings("theirs", AddressSettings(**settings))
            await client.send_many("theirs", numbered(4))
            await client.send_many("news", numbered(3))
        assert nodes.known("a").peers()[0].waiting == 7
        await nodes.start("b")
        await until(lambda: nodes.known("a").peers()[0].waiting == 0)
        assert await nodes.left("b") == {"b/theirs": 4, "b/sub": 3}


async def test_a_name_that_somebody_else_has_goes_there_though_nobody_consumes_it() -> None:
    async with hosts("abc", cluster=FAST) as nodes:
        for name in "bc":
            async with nodes.client(name) as client:
                await client.create_queue("theirs")
        await nodes.joined()
        await nodes.crash("b")
        await until(lambda: [peer.state for peer in nodes.known("a").peers()] == ["away", "linked"])
        async with nodes.client("a") as client:
            await client.set_address_settings("theirs", AddressSettings(auto_create_queues=False))
            await client.send_many("theirs", numbered(10))
        await trio.sleep(1)
        assert await nodes.left("a", "c") == {"c/theirs": 10}


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("linked_first", [True, False])
async def test_a_node_that_was_given_up_and_comes_back_is_linked_again(how: str, linked_first: bool) -> None:
    finite = {**FINITE, "initial_connect_attempts": 2}
    async with hosts(cluster=finite, broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        await end(nodes, how, "b")
        if not linked_first:
            await nodes.crash("a")
            await nodes.start("a")
        await until(lambda: state(nodes, "a") == "down")
        assert "attempts" in str(nodes.known("a").peers()[0].error)
        await nodes.send("a", numbered(10))
        assert nodes.known("a").peers()[0].waiting == 0
        await nodes.start("b")
        await nodes.joined()
        got: list[Delivery] = []
        await nodes.nursery.start(nodes.serve_queue, "b", got)
        await nodes.known("a").wait_for(queue="q", consumers=1, timeout=5)
        await nodes.send("a", numbered(10, 10))
        await until(lambda: len(got) == 10)


async def test_a_node_that_was_given_up_is_linked_at_once_when_it_dials_us() -> None:
    slow = {**FINITE, "check_period": 86_400.0, "initial_connect_attempts": 1}
    async with hosts(cluster=slow) as nodes:
        await nodes.joined()
        await nodes.crash("b")
        await until(lambda: state(nodes, "a") == "down")
        began = trio.current_time()
        await trio.sleep(100)
        assert state(nodes, "a") == "down"
        await nodes.start("b")
        await nodes.joined()
        assert trio.current_time() - began < 110


async def test_a_node_that_dials_us_is_not_waited_for_until_the_next_attempt() -> None:
    patient = {**FAST, "retry_interval": 3_600.0, "max_retry_interval": 3_600.0}
    async with hosts(cluster=patient) as nodes:
        await nodes.joined()
        await nodes.crash("b")
        await trio.sleep(200)
        await nodes.start("b")
        began = trio.current_time()
        await nodes.joined()
        assert trio.current_time() - began < 10


async def test_what_waits_for_a_given_up_node_is_kept_and_arrives_once() -> None:
    async with hosts(mode="strict", cluster=FINITE, broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        nodes.network.partition(["a"], ["b"])
        await nodes.send("a", numbered(10))
        await until(lambda: state(nodes, "a") == "down")
        assert nodes.known("a").peers()[0].waiting == 5
        await nodes.send("a", numbered(10, 10))
        assert nodes.known("a").peers()[0].waiting == 5
        nodes.network.heal()
        await nodes.joined()
        await trio.sleep(2)
        assert await nodes.left() == {"a/q": 15, "b/q": 5}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "silent"])
async def test_what_waits_for_an_absent_node_is_held_by_nobody_and_expires(how: str) -> None:
    async with hosts(mode="strict", cluster=FAST, broker={"queues": ["q"]}) as nodes:
        async with nodes.client("a") as client:
            await client.set_address_settings("q", AddressSettings(expiry_address="late"))
        await nodes.joined()
        await end(nodes, how, "b")
        async with nodes.client("a") as client:
            # Handed to the link, which doesn't know yet: whether these are there only the other node can tell.
            await client.send_many("q", [Message(body, ttl=20) for body in numbered(100)])
            await until(lambda: state(nodes, "a") == "away")
            await client.send_many("q", [Message(body, ttl=20) for body in numbered(100, 100)])
            await client.send_many("q", [Message(body) for body in numbered(10, 200)])
            forward = await client.queue(nodes.forward("b"))
            assert (forward.ready, forward.delivering, forward.consumers) == (105, 0, 0)
            assert nodes.known("a").peers()[0].waiting == 105
            await trio.sleep(30)
            assert nodes.known("a").peers()[0].waiting == 55
            assert (await client.queue("late")).ready == 150
            if how == "silent":
                nodes.network.heal()
            else:
                await nodes.start("b")
            await nodes.joined()
            await until(lambda: nodes.known("a").peers()[0].waiting == 0)
            assert (await client.queue("late")).ready == 200
            async with client.consumer("late") as consumer:
                (first, *_) = await consumer.receive_many(200, timeout=1)
            assert (first.origin.address, first.origin.reason) == ("q", "expired")


@pytest.mark.slow
async def test_what_was_dealt_to_two_absent_nodes_expires_as_well() -> None:
    async with hosts("abc", mode="strict", cluster=FAST, broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        for name in "bc":
            await nodes.crash(name)
        async with nodes.client("a") as client:
            await client.send_many("q", [Message(body, ttl=20) for body in numbered(300)])
            peers = nodes.known("a").peers
            await until(lambda: {peer.state for peer in peers()} == {"away"})
            assert [peer.waiting for peer in peers()] == [100, 100]
            await trio.sleep(30)
            assert [peer.waiting for peer in peers()] == [0, 0]
            assert (await client.queue("q")).expired == 100


async def test_what_expired_for_an_absent_node_stays_so_over_a_restart() -> None:
    async with hosts(mode="strict", cluster=FAST, broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        await nodes.crash("b")
        await until(lambda: state(nodes, "a") == "away")
        async with nodes.client("a") as client:
            await client.send_many("q", [Message(body, ttl=5) for body in numbered(10)])
        await nodes.crash("a")
        await nodes.start("a")
        assert (await nodes.left("a"))[f"a/{nodes.forward('b')}"] == 5
        await trio.sleep(10)
        assert await nodes.left("a") == {}


#: Of brokers whose memory a few hundred messages of ``send_more_than_fits`` use up.
SMALL: dict[str, Any] = {"queues": ["q"], "memory_limit": 1 << 20}


async def send_more_than_fits(nodes: Hosts) -> None:
    """Cut the nodes off from each other, and send from a, half of it for b, in a minute."""
    nodes.network.partition(["a"], ["b"])
    with trio.fail_after(60):
        await nodes.send("a", [bytes(10_000)] * 1_000)


@pytest.mark.slow
async def test_an_absent_node_keeps_no_sender_waiting_however_little_memory_there_is() -> None:
    async with hosts(mode="strict", cluster=FAST, broker=SMALL) as nodes:
        await nodes.joined()
        await send_more_than_fits(nodes)
        await until(lambda: state(nodes, "a") == "away")
        # Nothing is kept twice.
        (peer,) = nodes.known("a").peers()
        assert (peer.waiting, peer.unconfirmed) == (500, 0)
        async with nodes.client("a") as client:
            forward = await client.queue(nodes.forward("b"))
            assert forward.ready == 500
            assert forward.paged > 400
        nodes.network.heal()
        await nodes.joined()
        await until(lambda: nodes.known("a").peers()[0].waiting == 0)
        assert len(await nodes.drain("b")) == 500


async def test_a_node_that_is_linked_and_takes_nothing_keeps_no_sender_waiting_either() -> None:
    patient = {"connection_ttl": 600.0, "check_period": 60.0}
    async with hosts(mode="strict", cluster=patient, broker=SMALL) as nodes:
        await nodes.joined()
        await send_more_than_fits(nodes)
        assert state(nodes, "a") == "linked"


async def test_peers_say_how_much_was_given_to_a_link_and_is_not_confirmed() -> None:
    patient = {"connection_ttl": 600.0, "check_period": 60.0}
    async with hosts(mode="strict", cluster=patient, broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        nodes.network.partition(["a"], ["b"])
        # More than the other node has granted: a part of it is not sent yet.
        await nodes.send("a", [bytes(10_000)] * 1_000)
        async with nodes.client("a") as client:
            forward = await client.queue(nodes.forward("b"))
        (peer,) = nodes.known("a").peers()
        assert (peer.waiting, peer.unconfirmed) == (500, forward.delivering)
        assert forward.delivering > 100


async def test_whoever_watches_is_told_who_joined_and_how_a_node_left() -> None:
    async with hosts(cluster=FINITE) as nodes:
        await nodes.joined()
        events = nodes.brokers["a"].events()
        node_id = bytes(nodes.brokers["b"].node_id).hex()
        await nodes.stop("b")
        await until(lambda: state(nodes, "a") == "down")
        await nodes.start("b")
        await nodes.joined()
        await nodes.crash("b")
        await until(lambda: state(nodes, "a") == "down")
        await nodes.stop("a")
        told = [event async for event in events if isinstance(event, (NodeJoined, NodeLeft))]
        assert all((event.node_id, event.node_name) == (node_id, "b") for event in told)
        found = [getattr(event, "reason", "joined") for event in told]
        assert found == ["left", "down", "joined", "away", "down"]
        assert {event.successor for event in told if isinstance(event, NodeLeft)} == {""}


async def test_a_node_that_is_there_at_once_in_the_place_of_another_one_has_joined() -> None:
    async with hosts(cluster=FAST) as nodes:
        await nodes.joined()
        events = nodes.brokers["a"].events()
        await nodes.crash("b")
        nodes.own["b"] = {"data_dir": "/data/new"}
        await nodes.start("b")
        await nodes.joined()
        node_id = bytes(nodes.brokers["b"].node_id).hex()
        await until(lambda: nodes.known("a").peers()[0].node_id == node_id)
        await until(lambda: state(nodes, "a") == "linked")
        await nodes.stop("a")
        told = [event async for event in events if isinstance(event, NodeJoined)]
        assert [event.node_id for event in told] == [node_id]


async def test_a_subscription_that_ended_has_no_consumers_any_more() -> None:
    async with hosts() as nodes, nodes.client("b") as client:
        await nodes.joined()
        async with client.subscribe("news", name="desk"):
            (queue,) = [name for name in await client.queues() if "desk" in name]
            await nodes.known("a").wait_for(queue=queue, consumers=1, timeout=5)
        await until(lambda: nodes.known("a").consumers(queue) == 0)


async def test_peers_say_what_went_wrong_last() -> None:
    async with hosts(cluster=FAST) as nodes:
        await nodes.joined()
        (peer,) = nodes.known("b").peers()
        assert (peer.state, peer.connected, peer.error) == ("linked", True, None)
        await nodes.crash("b")
        await until(lambda: state(nodes, "a") == "away")
        (peer,) = nodes.known("a").peers()
        assert not peer.connected
        assert "tcp://b:5000" in str(peer.error) or "b:5000" in str(peer.error)


async def test_the_addresses_of_a_connection_are_all_that_it_shares() -> None:
    async with hosts(mode="strict", cluster={"address": "q,!q.own"}, broker={"queues": ["q", "q.own", "r"]}) as nodes:
        await nodes.joined()
        assert math.isinf(nodes.known("a").settings.reconnect_attempts)
        for queue in ("q", "q.own", "r"):
            await nodes.send("a", numbered(10), queue)
        await trio.sleep(1)
        assert await nodes.left() == {"a/q": 5, "b/q": 5, "a/q.own": 10, "a/r": 10}


async def test_what_was_dealt_before_a_crash_arrives_once_after_it() -> None:
    async with hosts(cluster=FAST) as nodes:
        there: list[Delivery] = []
        await nodes.nursery.start(nodes.serve_queue, "b", there)
        await nodes.known("a").wait_for(nodes=2, queue="q", consumers=1, timeout=5)
        nodes.network.partition(["a"], ["b"])
        await nodes.send("a", numbered(50))
        await nodes.crash("b")
        nodes.network.heal()
        await until(lambda: state(nodes, "a") == "away")
        assert nodes.known("a").peers()[0].waiting == 50
        await nodes.start("b")
        await until(lambda: len(there) == 50)
        assert sorted(bodies(there)) == sorted(numbered(50))
