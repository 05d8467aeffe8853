"""What comes for a node that has left and had handed over all: it is routed anew, whenever that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from meshq import AddressFullError
from meshq.broker.catalog._distribution_plan import Share
from meshq.broker.queue._delivery_options import DeliveryOptions, QueueThere
from meshq.broker.queue._run import StoredRun
from meshq.broker.records._row_options import RowOptions
from meshq.wire import encode_run
from tests.cluster.kit import Mesh, bodies, mesh, until


@pytest.mark.slow
async def test_what_reaches_a_middle_node_for_one_that_has_handed_over_is_routed_anew_whenever_it_comes() -> None:
    async with mesh(
        "abc",
        root="simulated",
        others={"a": ["b"], "b": ["a", "c"], "c": ["b"]},
        cluster={"max_hops": 2, "allow_direct_connections_only": True},
        own={"b": {"queues": ["q"]}, "c": {"queues": ["q", "only"]}},
    ) as made:
        await made.known("b").wait_for(nodes=3, queue="only", timeout=30)
        node_id = bytes(made.brokers["c"].node_id).hex()
        name = next(name for name in made.brokers["b"]._node.core.router.queues if name.endswith(node_id))
        forward = made.brokers["b"]._node.core.router.queues[name]
        async with made.brokers["c"].drain("b"):
            pass
        await made.stop("c")
        await until(lambda: made.known("b").peers()[-1].state == "left")
        late = _late_for(made, forward.name)
        late(b"late")
        await until(lambda: not forward.counts.ready)
        assert bodies(await made.drain("b", "only")) == [b"late"]
        await made.kill("b")
        await made.start("b")
        _late_for(made, forward.name)(b"later")
        await until(lambda: not made.brokers["b"]._node.core.router.queues[forward.name].counts.ready)
        assert bodies(await made.drain("b", "only")) == [b"later"]


async def test_what_comes_for_a_node_that_has_handed_over_and_was_given_up_since_is_routed_anew_too() -> None:
    async with mesh(
        "bc",
        root="simulated",
        cluster={"initial_connect_attempts": 2, "reconnect_attempts": 2},
        own={"b": {"queues": ["q"]}, "c": {"queues": ["q", "only"]}},
    ) as made:
        await made.known("b").wait_for(nodes=2, queue="only", timeout=30)
        name = made.forward("c")
        forward = made.brokers["b"]._node.core.router.queues[name]
        async with made.brokers["c"].drain("b"):
            pass
        await made.stop("c")
        await until(lambda: made.known("b").peers()[-1].state == "down")
        _late_for(made, name)(b"late")
        await until(lambda: forward.counts.added == 1)
        await until(lambda: not forward.counts.ready)
        assert bodies(await made.drain("b", "only")) == [b"late"]


async def test_what_finds_no_room_is_routed_anew_again_after_a_pause_without_any_news() -> None:
    async with mesh("bc", root="simulated", own={"b": {"queues": ["q"]}, "c": {"queues": ["q", "only"]}}) as made:
        await made.known("b").wait_for(nodes=2, queue="only", timeout=30)
        name = made.forward("c")
        core = made.brokers["b"]._node.core
        async with made.brokers["c"].drain("b"):
            pass
        await made.stop("c")
        await until(lambda: made.known("b").peers()[-1].state == "left")
        place, refused = core.ingress.place_anew, [0]

        def full(*what: Any) -> bool:
            refused[0] += 1
            raise AddressFullError("the disk is full")

        core.ingress.place_anew = full
        _late_for(made, name)(b"late")
        await until(lambda: refused[0] > 1)
        core.ingress.place_anew = place
        await until(lambda: not core.router.queues[name].counts.ready)
        assert bodies(await made.drain("b", "only")) == [b"late"]


def _late_for(made: Mesh, name: str) -> Callable[[bytes], None]:
    """Return what places a message for the queue ``only`` of the node that has left, as a node further back does."""
    core = made.brokers["b"]._node.core
    forward = core.router.queues[name]

    def place(body: bytes) -> None:
        run = StoredRun("only", encode_run([body]), durable=True, producer=bytes(16), number=1, stamp=0)
        run.options = DeliveryOptions(0, there=QueueThere("only", "anycast", "", "", "durable"))
        core.ingress.place_shares(run, [Share(forward, range(1), ())], [RowOptions()], ())
        core.pending.run()

    return place


async def test_a_restart_does_not_forget_a_node_without_a_static_connector_that_has_handed_over() -> None:
    async with mesh(
        "abc",
        root="simulated",
        others={"a": ["b"], "b": ["a"], "c": ["b"]},
        cluster={"max_hops": 2},
        own={"a": {}, "b": {"queues": ["q"]}, "c": {"queues": ["q", "only"]}},
    ) as made:
        await made.joined()
        await made.known("a").wait_for(nodes=3, queue="only", timeout=30)
        name = made.forward("c")
        assert made.brokers["b"]._node.core.router.relays.leads(made.brokers["b"]._node.core.router.queues[name].number)
        async with made.brokers["c"].drain("b"):
            pass
        await made.stop("c")
        await until(lambda: made.known("b").peers()[-1].state == "left")
        await made.kill("b")
        await made.start("b")
        _late_for(made, name)(b"late")
        forward = made.brokers["b"]._node.core.router.queues[name]
        await until(lambda: forward.counts.added == 1)
        await until(lambda: not forward.counts.ready)
        assert bodies(await made.drain("b", "only")) == [b"late"]


async def test_another_node_at_the_place_of_one_that_has_handed_over_keeps_what_waits_for_it() -> None:
    own = {name: {"queues": ["q", "only"] if name == "c" else ["q"]} for name in "abc"}
    async with mesh("abc", root="simulated", own=own) as made:
        await made.joined()
        async with made.brokers["c"].drain("a"):
            pass
        await made.stop("c")
        peers = {keeper.url: keeper.peer for keeper in made.known("b")._keepers.values()}
        peer = peers[made.urls["c"]]
        await until(lambda: peer.state == "left")
        await made.kill("a")
        await until(lambda: peers[made.urls["a"]].state == "away")
        name = made.forward("a")
        # Where the one was that has left, the other one answers, and has not said yet how far it has come.
        peer._lead_to(bytes(made.brokers["a"].node_id))
        _late_for(made, name)(b"late")
        forward = made.brokers["b"]._node.core.router.queues[name]
        await until(lambda: forward.counts.ready == 1)
        assert not peer.pass_on()
        await trio.sleep(1.0)
        assert forward.counts.ready == 1
