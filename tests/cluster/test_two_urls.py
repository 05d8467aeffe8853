"""One node behind two URLs: it is linked by one of them, and by the other when the first fails."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from meshq import Delivery, NodeJoined, NodeLeft, abc
from meshq.errors import ConnectionBrokenError
from tests.cluster.hosts import Hosts, hosts
from tests.cluster.kit import until
from tests.cluster.test_lost_nodes import FAST, FINITE, numbered

#: Nodes are linked by the URLs that are listed, and by no others.
LISTED = {**FAST, "allow_direct_connections_only": True}
FIRST, SECOND = (f"tcp://b:{port}?insecure=true" for port in (5000, 5001))


@attrs.define(eq=False)
class Ways(abc.Network):
    """The network of a machine from which single ports can be closed."""

    inner: abc.Network
    closed: set[int] = attrs.field(factory=set)
    #: Another host to which a port leads by now.
    elsewhere: dict[int, str] = attrs.field(factory=dict)
    #: How long it takes to connect.
    slow_s: dict[int, float] = attrs.field(factory=dict)
    streams: list[tuple[int, abc.Stream]] = attrs.field(factory=list)

    async def connect(self, host: str, port: int) -> abc.Stream:
        await trio.sleep(self.slow_s.get(port, 0))
        if port in self.closed:
            raise ConnectionBrokenError(f"{host}:{port} can't be reached", outcome="not_done") from OSError("closed")
        stream = await self.inner.connect(self.elsewhere.get(port, host), port)
        self.streams.append((port, stream))
        return stream

    async def listen(self, host: str, port: int) -> abc.Listener:
        return await self.inner.listen(host, port)

    def close(self, port: int) -> None:
        """Break the connections to a port, and let nobody make another one."""
        self.closed.add(port)
        self.reset(port)

    def reset(self, port: int) -> None:
        """Break the connections to a port."""
        for at, stream in self.streams:
            if at == port:
                stream.close()


@attrs.define(eq=False)
class TwoUrls(Hosts):
    """Two nodes, of which a knows b by two URLs."""

    ways: Ways | None = None

    def machine(self, name: str) -> abc.Env:
        env = super().machine(name)
        if name != "a":
            return env
        # Which of both links first is not left to chance.
        self.ways = Ways(env.network, {5001})
        return attrs.evolve(env, network=self.ways)


def ways(nodes: Hosts) -> Ways:
    assert isinstance(nodes, TwoUrls) and nodes.ways is not None
    return nodes.ways


BOTH: dict[str, Any] = {
    "others": {"a": [FIRST, SECOND]},
    "own": {"b": {"acceptors": [FIRST, SECOND]}},
    "made_as": TwoUrls,
}


def states(nodes: Hosts) -> list[str]:
    return [peer.state for peer in nodes.known("a").peers()]


async def linked_by_the_first(nodes: Hosts) -> None:
    await nodes.known("a").wait_for(nodes=2, timeout=10)
    ways(nodes).closed.clear()
    await until(lambda: states(nodes) == ["linked", "spare"])


@pytest.mark.parametrize("settings", [FAST, FINITE], ids=["patient", "gives up"])
async def test_when_the_first_url_fails_the_node_is_reached_by_the_second_and_back(settings: dict[str, object]) -> None:
    async with hosts(mode="strict", cluster=settings, broker={"queues": ["q"]}, **BOTH) as nodes:
        await linked_by_the_first(nodes)
        sent = 0
        for closed, opened in ((5000, 5001), (5001, 5000), (5000, 5001)):
            ways(nodes).closed.discard(opened)
            await trio.sleep(5)
            assert states(nodes) == (["linked", "spare"] if closed == 5000 else ["spare", "linked"])
            ways(nodes).close(closed)
            # Dealt while nobody answers, and after it.
            await nodes.send("a", numbered(10, sent))
            with trio.fail_after(60):
                await nodes.joined()
            await nodes.send("a", numbered(10, sent + 10))
            await until(lambda: not any(peer.waiting for peer in nodes.known("a").peers()))
            sent += 20
        got = sorted(int(delivery.body) for delivery in [*await nodes.drain("a"), *await nodes.drain("b")])
        assert got == list(range(sent))


@pytest.mark.parametrize("settings", [FAST, FINITE], ids=["patient", "gives up"])
async def test_what_is_wrong_with_a_spare_url_says_nothing_of_the_node(settings: dict[str, object]) -> None:
    settings = {**settings, "initial_connect_attempts": 2} if settings is FINITE else settings
    async with hosts(cluster=settings, **BOTH) as nodes:
        await linked_by_the_first(nodes)
        assert "used when" in str(nodes.known("a").peers()[1].error)
        events = nodes.brokers["a"].events()
        ways(nodes).close(5001)
        await until(lambda: states(nodes) == ["linked", "down" if settings is not FAST else "away"])
        assert nodes.known("a").nodes() == 2
        ways(nodes).closed.clear()
        await until(lambda: states(nodes) == ["linked", "spare"])
        await nodes.stop("b")
        await until(lambda: "left" in states(nodes) or "down" in states(nodes))
        await nodes.stop("a")
        told = [event async for event in events if isinstance(event, (NodeJoined, NodeLeft))]
        assert [getattr(event, "reason", "joined") for event in told][:1] == ["left"]
        assert not any(isinstance(event, NodeJoined) for event in told)


async def test_another_node_that_answers_at_a_spare_url_is_linked() -> None:
    other = {"acceptors": ["tcp://c:5001?insecure=true"]}
    async with hosts("abc", cluster=LISTED, **{**BOTH, "own": {**BOTH["own"], "c": other}}) as nodes:
        await linked_by_the_first(nodes)
        # Its name leads somewhere else.
        ways(nodes).elsewhere[5001] = "c"
        await until(lambda: states(nodes) == ["linked", "linked"])
        assert [peer.node_name for peer in nodes.known("a").peers()] == ["b", "c"]


async def test_what_waits_is_counted_once_and_what_is_wanted_goes_by_the_second_url() -> None:
    async with hosts(cluster=FAST, broker={"queues": ["q"]}, **BOTH) as nodes:
        await linked_by_the_first(nodes)
        there: list[Delivery] = []
        await nodes.nursery.start(nodes.serve_queue, "b", there)
        await nodes.known("a").wait_for(queue="q", consumers=1, timeout=5)
        ways(nodes).close(5000)
        await until(lambda: states(nodes)[1] == "linked")
        # Nobody answers at the first, time and again.
        await trio.sleep(5)
        await nodes.send("a", numbered(10))
        await until(lambda: len(there) == 10)
        assert (nodes.known("a").nodes(), nodes.known("a").consumers("q")) == (2, 1)
        nodes.network.pause_host("b")
        await nodes.send("a", numbered(10, 10))
        assert [peer.waiting for peer in nodes.known("a").peers()] == [0, 10]


async def test_a_link_that_is_about_to_be_resumed_is_not_given_to_the_spare() -> None:
    async with hosts(cluster={"connection_ttl": 10.0, "check_period": 0.5}, **BOTH) as nodes:
        await linked_by_the_first(nodes)
        ways(nodes).slow_s[5000] = 3
        ways(nodes).reset(5000)
        seen = set()
        for _ in range(50):
            await trio.sleep(0.1)
            seen.add(tuple(states(nodes)))
        assert seen == {("linked", "spare")}
        assert nodes.known("a").peers()[0].connected


async def test_when_another_node_answers_at_the_first_url_the_second_links_the_one_that_was_there() -> None:
    other = {"acceptors": ["tcp://c:5000?insecure=true"]}
    async with hosts("abc", cluster=LISTED, **{**BOTH, "own": {**BOTH["own"], "c": other}}) as nodes:
        await linked_by_the_first(nodes)
        ways(nodes).elsewhere[5000] = "c"
        ways(nodes).reset(5000)
        await until(lambda: states(nodes) == ["linked", "linked"])
        assert [peer.node_name for peer in nodes.known("a").peers()] == ["c", "b"]


@pytest.mark.parametrize("attempt", range(4))
async def test_of_two_urls_that_answer_at_once_one_is_a_spare(attempt: int) -> None:
    settings = {**BOTH, "made_as": Hosts}
    async with hosts(cluster=FAST, **settings) as nodes:
        await nodes.joined()
        await until(lambda: sorted(states(nodes)) == ["linked", "spare"])


async def test_a_url_that_leads_back_to_this_node_is_looked_at_again() -> None:
    async with hosts(cluster=FAST, **{**BOTH, "others": {"a": [FIRST], "b": []}}) as nodes:
        await nodes.known("a").wait_for(nodes=2, timeout=10)
        ways(nodes).elsewhere[5000] = "a"
        ways(nodes).reset(5000)
        await until(lambda: not nodes.known("a").peers()[0].connected)
        await trio.sleep(5)
        assert nodes.known("a").nodes() == 1
        ways(nodes).elsewhere.clear()
        await nodes.known("a").wait_for(nodes=2, timeout=10)


@pytest.mark.parametrize("first", ["nobody:5000", "b:5002"])
async def test_the_second_host_of_a_connector_is_used_while_the_first_is_away(first: str) -> None:
    url = f"(tcp://{first},tcp://b:5000)?insecure=true"
    async with hosts(mode="strict", cluster=FAST, broker={"queues": ["q"]}, others={"a": [url]}) as nodes:
        await nodes.joined()
        await nodes.send("a", numbered(10))
        await until(lambda: nodes.known("a").peers()[0].waiting == 0)
        assert await nodes.left() == {"a/q": 5, "b/q": 5}


async def test_after_a_loss_the_other_host_of_a_connector_is_tried() -> None:
    settings = {**BOTH, "others": {"a": ["(tcp://b:5000,tcp://b:5001)?insecure=true"]}}
    async with hosts(mode="strict", cluster=FAST, broker={"queues": ["q"]}, **settings) as nodes:
        await nodes.joined()
        sent = 0
        for closed, opened in ((5000, 5001), (5001, 5000)):
            ways(nodes).closed.discard(opened)
            ways(nodes).close(closed)
            await nodes.send("a", numbered(10, sent))
            await until(lambda: nodes.known("a").peers()[0].waiting == 0)
            assert nodes.known("a").nodes() == 2
            sent += 10
        assert await nodes.left() == {"a/q": 10, "b/q": 10}
