"""Notifications of the queues of other nodes, and the list of events of a cluster whose nodes come and go."""

from __future__ import annotations

from typing import Any

import trio

from meshq import BindingAdded, BindingRemoved, EventStream, NodeJoined, NodeLeft, TopologyChanged
from meshq.broker import BindingNews, EventBus, Queue, RemoteBinding
from meshq.notifications import Notification
from tests.cluster.kit import Mesh, mesh


class Bus(EventBus):
    """Events as short lists."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, kind: type[Any], **about: Any) -> None:
        sign = "+" if kind is BindingAdded else "-"
        self.said.append(f"{sign}{about['queue']}@{about['node_id']}")


def binding(number: int, name: str, *path: str, consumers: int = 0) -> RemoteBinding:
    forward: Queue = None  # type: ignore[assignment]
    path = path or ("b",)
    return RemoteBinding(forward, "strict", number, name, name, "anycast", consumers, (), path=path)


def test_what_is_new_or_gone_is_told_once_and_nothing_else() -> None:
    bus = Bus()
    news = BindingNews(bus)
    news.all(1, [binding(1, "q"), binding(2, "r", "c", "b")])
    news.one(1, 1, binding(1, "q", consumers=7))
    news.one(1, 1, None)
    news.one(1, 1, None)
    news.one(1, 3, binding(3, "s"))
    # The number of another store: it stands for another queue now.
    news.all(1, [binding(2, "other", "c", "b"), binding(3, "s")])
    news.all(2, [binding(3, "s", "d")])
    news.all(1, [])
    news.all(1, [])
    assert bus.said == ["+q@b", "+r@c", "-q@b", "+s@b", "-r@c", "+other@c", "+s@d", "-other@c", "-s@b"]


async def said(nodes: Mesh, events: EventStream[Notification]) -> list[str]:
    """What node a has told until its end."""
    names = {bytes(broker.node_id).hex(): name for name, broker in nodes.brokers.items()}
    await nodes.stop("a")
    found = []
    async for event in events:
        if isinstance(event, BindingAdded):
            found.append(f"+{event.queue}@{names[event.node_id]}")
        elif isinstance(event, BindingRemoved):
            found.append(f"-{event.queue}@{names[event.node_id]}")
        elif isinstance(event, NodeJoined):
            found.append(f"{names[event.node_id]} joined")
        elif isinstance(event, NodeLeft):
            found.append(f"{names[event.node_id]} {event.reason}")
    return found


#: A node that is lost is given up soon.
FAST = {"reconnect_attempts": 3, "initial_connect_attempts": 3, "check_period": 1.0, "connection_ttl": 1.0}


async def test_the_list_of_events_of_nodes_that_come_and_go_is_this_at_a_broker_and_at_a_client() -> None:
    async with mesh("a", root="simulated", cluster=FAST) as nodes:
        nodes.urls |= {"b": "inproc://b", "c": "inproc://c"}
        nodes.others = {"a": ["b", "c"]}
        await nodes.kill("a")
        await nodes.start("a")
        events = nodes.brokers["a"].events()
        async with nodes.client("a") as client:
            heard = client.events()
            await nodes.start("b")
            await nodes.known("a").wait_for(nodes=2, timeout=30)
            async with nodes.client("b") as there:
                await there.create_queue("q")
                await nodes.known("a").wait_for(queue="q", queues=1, timeout=30)
                async with there.consumer("q"):
                    await nodes.known("a").wait_for(queue="q", consumers=1, timeout=30)
            await nodes.start("c")
            await nodes.known("a").wait_for(nodes=3, timeout=30)
            # In peace, and back.
            await nodes.stop("b")
            await nodes.known("a").wait_for(nodes=2, exactly=True, timeout=30)
            await trio.sleep(10)
            await nodes.start("b")
            await nodes.known("a").wait_for(nodes=3, queue="q", queues=1, timeout=30)
            async with nodes.client("b") as there:
                await there.delete_queue("q")
            await nodes.known("a").wait_for(queue="q", queues=0, exactly=True, timeout=30)
            # Without a word.
            await nodes.kill("c")
            await nodes.known("a").wait_for(nodes=2, exactly=True, timeout=30)
            await trio.sleep(10)
        # A node that is given up has no queues; when it is back it has.
        assert await said(nodes, events) == [
            *("b joined", "+q@b", "c joined"),
            *("b left", "-q@b", "b down", "+q@b", "b joined", "-q@b"),
            *("c away", "c down"),
        ]
        changes = []
        async for event in heard:
            if isinstance(event, TopologyChanged):
                changes += [f"{node.name} joined" for node in event.joined]
                changes += [f"{node.name} left" for node in event.left]
        assert changes == ["b joined", "c joined", "b left", "b joined", "c left"]
