"""Redirected clients whose broker hands over what it has, and leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio

from meshq import (
    BrokerBalancer,
    Client,
    ClientFactory,
    ClusterConnection,
    FailedOver,
    FirstElement,
    Redirected,
    ScaledDown,
)
from meshq.client.calls._session_facts import SessionFacts
from meshq.client.link._node_book_machine import KnownTargets
from meshq.client.link._redirects import Redirects
from meshq.client.link._topology import sent_to
from meshq.endpoint import Endpoint
from meshq.wire import Close
from tests.balancers.kit import FAST, Machines, machines, node_of, pool_of, so_far, url_of
from tests.cluster.kit import until
from tests.cluster.test_client_topology import LINKS

KINDS = (Redirected, ScaledDown, FailedOver)


@asynccontextmanager
async def clustered(names: str = "abc", **settings: Any) -> AsyncIterator[Machines]:
    """The nodes of a cluster, and a broker ``front`` in no cluster whose balancer has them in its pool."""
    async with machines() as made:
        connectors = {name: f"{url_of(name)}?insecure=true" for name in names}
        for name in names:
            others = [other for other in names if other != name]
            links = ClusterConnection("mesh", connector=name, static_connectors=others, password="canary-" * 3, **LINKS)
            await made.start(name, links, connectors=connectors)
        await made.start("front", BrokerBalancer("lb", pool=pool_of(names), **settings), redirect_to="lb")
        await made.ready(*names)
        yield made


async def send_unconfirmed(made: Machines, client: Client, nursery: trio.Nursery) -> None:
    """Have a second message stored at the node ``a``, from which the client hears nothing any more."""
    await client.send("q", b"first")
    made.network.cut("a", "shop")
    nursery.start_soon(partial(client.send, "q", b"once", duplicate_id="once"))
    node = made.brokers["a"]._node
    assert node is not None
    duplicates = node.core.router.addresses["q"].duplicates
    await until(lambda: "once" in str(duplicates.known()))


async def test_a_client_goes_on_at_the_handover_s_target_and_all_later_connections_by_their_own_url() -> None:
    async with clustered(policy=FirstElement(), cache_timeout=0.0) as made:
        env = attrs.evolve(made.env, network=made.network.host("shop"), local={})
        factory = ClientFactory(url_of("front", 5_001), env=env, **FAST)
        async with factory.connect() as client:
            assert node_of(client) == "a"
            events = client.events()
            await client.send("q", b"x")
            async with made.brokers["a"].drain("c"):
                pass
            await until(lambda: node_of(client) == "c")
            # There its messages are, and no balancer was asked.
            assert [type(one) for one in await so_far(events) if isinstance(one, KINDS)] == [ScaledDown, FailedOver]
            assert (await client.queue("q")).ready == 1
            await made.ready("b", "c")
            before = made.balancer().statistics().redirected
            for _ in range(4):
                async with factory.connect() as other:
                    assert node_of(other) == "b"
            made.network.reset("shop", "c")
            await until(lambda: client.statistics().resumed == 1)
            assert node_of(client) == "c" and made.balancer().statistics().redirected == before + 4
            await made.crash("c")
            await until(lambda: node_of(client) == "b")
            assert made.balancer().statistics().redirected > before + 4


async def test_a_broker_that_has_handed_over_is_no_target_of_its_own_pool() -> None:
    async with machines() as made:
        connectors = {name: f"{url_of(name)}?insecure=true" for name in "ab"}
        for name, other in ("ab", "ba"):
            links = ClusterConnection(
                "mesh", connector=name, static_connectors=[other], password="canary-" * 3, **LINKS
            )
            pool = pool_of("ab", local_target_enabled=True)
            balancer = BrokerBalancer("lb", pool=pool, policy=FirstElement())
            await made.start(name, links, balancer, connectors=connectors)
        await made.ready("a", "b", broker="a")
        balancer = made.balancer(broker="a")
        found = await balancer.target("key")
        assert found is not None and found.local
        async with made.brokers["a"].drain("b"):
            pass
        await made.ready("b", broker="a")
        # Who asks there, because it can't be redirected, is not sent to a broker that takes nobody in.
        found = await balancer.target("key")
        assert found is not None and found.url == url_of("b")
        (row,) = [row for row in balancer.statistics().targets if row.local]
        assert row.state == "not_ready" and "hands over" in row.error


async def test_links_of_a_cluster_stay_where_acceptors_redirect_and_a_drain_goes_over_them() -> None:
    async with machines() as made:
        await made.start("c")
        connectors = {name: f"{url_of(name)}?insecure=true" for name in "ab"}
        for name, other in ("ab", "ba"):
            links = ClusterConnection(
                "mesh", connector=name, static_connectors=[other], password="canary-" * 3, **LINKS
            )
            # All that comes over the network to these two is sent on, unless it is a link.
            balancer = BrokerBalancer("lb", pool=pool_of("c", user=""), policy=FirstElement())
            acceptors = [f"{url_of(name)}?insecure=true&redirect_to=lb"]
            await made.start(name, links, balancer, connectors=connectors, acceptors=acceptors, queues=["q"])
        await made.ready("c", broker="a")
        async with made.dial(url_of("a")) as client:
            assert node_of(client) == "c"
        async with made.brokers["a"].client() as client:
            await client.send_many("q", [b"x"] * 20)
        async with made.brokers["a"].drain("b"):
            pass
        async with made.brokers["b"].client() as client:
            assert (await client.queue("q")).ready == 20
        assert made.balancer(broker="b").statistics().redirected == 0


async def test_a_balancer_at_the_handover_s_target_keeps_the_client_whose_messages_are_there() -> None:
    names = "abc"
    async with machines() as made:
        connectors = {name: f"{url_of(name)}?insecure=true" for name in names}
        for name in names:
            others = [other for other in names if other != name]
            links = ClusterConnection("mesh", connector=name, static_connectors=others, password="canary-" * 3, **LINKS)
            pool = pool_of(names, local_target_enabled=True)
            balancer = BrokerBalancer("lb", pool=pool, policy=FirstElement(), cache_timeout=0.0)
            acceptors = [f"{url_of(name)}?insecure=true&redirect_to=lb"]
            await made.start(name, links, balancer, connectors=connectors, acceptors=acceptors)
        for name in names:
            await made.ready(*names, broker=name)
        async with made.dial(f"({','.join(map(url_of, names))})") as client, trio.open_nursery() as nursery:
            assert node_of(client) == "a"
            await send_unconfirmed(made, client, nursery)
            async with made.brokers["a"].drain("c"):
                # Without it, FirstElement would choose b.
                made.network.partition(["shop"], ["a"])
            made.network.heal()
            await until(lambda: node_of(client) not in ("", "a"))
            assert node_of(client) == "c"
        assert [made.brokers[name].statistics().ready for name in "bc"] == [0, 2]


async def test_a_client_that_hears_of_the_handover_in_the_middle_of_a_round_goes_there_and_nowhere_else() -> None:
    names = "abc"
    async with machines() as made:
        connectors = {name: f"{url_of(name)}?insecure=true" for name in names}
        for name in names:
            others = [other for other in names if other != name]
            links = ClusterConnection("mesh", connector=name, static_connectors=others, password="canary-" * 3, **LINKS)
            await made.start(name, links, connectors=connectors)
        urls = f"({','.join(map(url_of, names))})"
        async with (
            made.dial(urls, use_topology=False, load_balancing="first_element", connection_ttl=10) as client,
            trio.open_nursery() as nursery,
        ):
            assert node_of(client) == "a"
            await send_unconfirmed(made, client, nursery)
            # The client does not hear of the handover on the link that it has, nor of the end of that link.
            assert made.network.silence("shop", "a") == 2
            made.network.heal()
            async with made.brokers["a"].drain("c"):
                pass
            # By then no node holds the client back, for all know that all is handed over.
            await trio.sleep(1)
            assert node_of(client) == "a"
            await until(lambda: node_of(client) not in ("", "a"))
            assert node_of(client) == "c"
        assert [made.brokers[name].statistics().ready for name in "bc"] == [0, 2]


def test_a_handover_is_over_for_a_client_that_has_a_session_again() -> None:
    front, a, c, d = (Endpoint.parse(url_of(name)) for name in ("front", "a", "c", "d"))
    ids = {name: name.encode() * 16 for name in ("f", "a", "c")}
    facts = SessionFacts()
    redirects = Redirects(facts)
    redirects.begin(front)
    assert redirects.follow(front, Close(node_id=ids["f"], target_place=str(a))) == a
    facts.node_id = ids["a"]
    facts.arrived()
    away = Close(node_id=ids["a"], instance=ids["a"], target=ids["c"], target_name="c", target_place=str(c))
    redirects.sent_away(away.node_id)
    facts.sent_away(away, sent_to(away))
    redirects.first(KnownTargets((front,), first=(c, a)))
    redirects.begin(c)
    assert redirects.redirected and facts.visited == ids["a"]
    facts.arrived()
    # Places come first also where a node has a backup; who goes there is sent by nobody.
    redirects.first(KnownTargets((front,), first=(c, d)))
    redirects.begin(d)
    assert not redirects.redirected and not facts.visited
