"""What a queue here has of a run that is dealt among nodes: order, and what the journal says of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshq import limits
from meshq.broker import RemoteBinding
from meshq.broker.catalog._distribution_plan import ClusteredQueue, plan
from meshq.broker.queue._queue_machine import Queue
from tests.broker.kit import FakeLog, House, make_core, make_house
from tests.broker.queues import join


def bind(house: House, link: bytes, number: int, name: str = "q", routing: str = "anycast") -> Queue:
    """Another node has a queue of this name, with a consumer; returns the store-and-forward queue to it."""
    forward = house.core.definitions.forward_queue(f"$meshq.cluster.mesh.{link.hex()}")
    binding = RemoteBinding(forward, "on_demand", number, name, name, routing, 1, ())
    house.core.router.bind(link, binding)
    return forward


def test_what_is_settled_of_a_share_can_be_read_again_whichever_share_it_is() -> None:
    for shift in range(3):
        house = make_house(FakeLog())
        client = house.client()
        producer, consumer = client.produce(), client.consume()
        for link in (b"1", b"2"):
            bind(house, link, 7)
        for _ in range(shift):
            client.put(producer, b"turn")
        client.put(producer, *([b"x"] * limits.RUN_MESSAGES_MAX))
        tags = house.queue().counts.unacked
        assert tags >= limits.RUN_MESSAGES_MAX // 3
        client.settle(consumer, (1, tags))
        log = house.log.after_crash()
        again = House(make_core(log, records=house.log.recovered()))
        assert again.queue().counts.ready == 0


numbers = st.integers(0, 3)


@given(st.lists(st.tuples(numbers, st.booleans()), min_size=2, max_size=3), st.integers(1, 40), st.integers(0, 5))
def test_each_queue_of_a_peer_gets_its_messages_of_a_run_in_their_order(
    names: list[tuple[int, bool]], rows: int, turn: int
) -> None:
    # Queues of several names, on different nodes each, all of them on the peer 0, too.
    forwards = [Queue(100 + peer, f"f{peer}", "f", durable=True) for peer in range(4)]
    clustered_queues = []
    for index, (others, local) in enumerate(names):
        clustered = ClusteredQueue(f"s{index}")
        if local:
            clustered.local = Queue(index, clustered.name, "news", durable=True)
            join(clustered.local)
        for peer in range(others + 1):
            remote = RemoteBinding(
                forwards[peer], "on_demand", 10 * peer + index, clustered.name, "news", "multicast", 1, ()
            )
            clustered.remotes.append(remote)
        clustered.next_index = turn * index
        clustered_queues.append(clustered)
    shares = plan(clustered_queues, range(rows), anycast=False, next_index=0, wants=lambda filters, row: True)
    got: dict[tuple[int, int], list[int]] = {}
    stood: dict[int, list[int]] = {}
    for queue, part, remote in shares:
        stood.setdefault(queue.number, []).extend(part)
        for number in remote or (-1,):
            got.setdefault((queue.number, number), []).extend(part)
    for found in got.values():
        assert found == sorted(found)
    for found in stood.values():
        assert len(found) == len(set(found))


def test_what_has_been_settled_of_a_dealt_run_takes_no_memory_while_the_rest_of_it_waits() -> None:
    house = make_house(FakeLog())
    client = house.client()
    producer, consumer = client.produce(), client.consume()
    bind(house, b"1", 7)
    rows = limits.RUN_MESSAGES_MAX
    client.put(producer, *([bytes(1_000)] * rows))
    tags = house.queue().counts.unacked
    assert rows // 3 <= tags < rows
    before = house.core.memory.used_bytes
    client.settle(consumer, (1, tags))
    assert before - house.core.memory.used_bytes >= 1_000 * tags
