"""Runs that are shared with other nodes, over the lives of one node: where they stand, and what the journal keeps."""

from __future__ import annotations

import itertools

import pytest

from meshq.broker import Core
from meshq.broker.queue._consumer_state import AnyConsumer, Dispatch
from meshq.broker.queue._queue_machine import Queue, QueueConsumer
from meshq.broker.records import LINKS, PRODUCERS, ROUTED, SETTLED, decode_links, decode_settled
from meshq.broker.session._deliver_frames import dispatched_run
from meshq.settings import AddressSettings
from meshq.wire import RunView
from tests.broker.kit import House, make_house, with_ids
from tests.broker.logs import FakeLog
from tests.broker.peers import LINK, bind, peer_of


class Reader:
    """Whoever reads a store-and-forward queue."""

    principal = None

    def __init__(self, core: Core, queue: Queue, window: int = 10_000) -> None:
        self.core, self.queue = core, queue
        self.consumer = QueueConsumer(queue, self, 1, window, 1 << 30)
        #: Number, body and queues of the other node, of each message in order; and the tag of each.
        self.got: list[tuple[int, bytes, tuple[int, ...]]] = []
        self.tags: list[int] = []
        queue.add_consumer(self.consumer)
        core.pending.schedule_dispatch(queue)
        core.pending.run()
        # The mark up to which messages may be given is on the disk.
        log = core.release_queue.log
        assert isinstance(log, FakeLog)
        log.sync()

    def deliver(self, consumer: AnyConsumer, dispatch: Dispatch) -> None:
        content = dispatched_run(dispatch, whole=True)
        view = RunView(content)
        for row in range(content.rows):
            self.got.append(
                (dispatch.view.first + dispatch.start + row * dispatch.step, view.body(row), dispatch.view.remote)
            )
            self.tags.append(dispatch.tag + row)

    def settle(self, *indexes: int) -> None:
        for index in indexes:
            self.core.acknowledger.settle(self.consumer, [(self.tags[index], self.tags[index])])
        self.core.pending.run()


def next_life(house: House) -> House:
    log = house.log.after_crash()
    return make_house(log, records=log.recovered())


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def state(house: House) -> dict[str, list[tuple[int, bytes]]]:
    """The messages of all queues."""
    found = {}
    for name, queue in house.core.router.queues.items():
        found[name] = [
            (view.first + row, RunView(view.run.content).body(row))
            for view in queue.runs()
            for row in range(len(view.states))
            if view.states[row] != 2
        ]
    return found


def shared_house(nodes: int = 2, rows: int = 9, *, mode: str = "strict", durable: bool = True) -> House:
    """A node whose queue "q" is on other nodes, too, and a run that was dealt."""
    house = make_house(FakeLog())
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=durable)
    for node in range(nodes):
        bind(house, node=f"n{node}", mode=mode)
    client = house.client()
    client.put(client.produce("q"), *numbered(rows))
    return house


@pytest.mark.parametrize("rows", [1, 2, 3, 9, 255, 256])
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_run_is_dealt_once_and_taken_up_as_it_was_dealt(rows: int, nodes: int) -> None:
    house = shared_house(nodes, rows)
    before = state(house)
    counts = sorted(len(found) for found in before.values())
    assert sum(counts) == rows
    assert counts[-1] - counts[0] <= 1
    assert sorted(body for found in before.values() for _, body in found) == sorted(numbered(rows))
    later = next_life(house)
    assert state(later) == before
    later.check()
    assert later.core.memory.used_bytes == house.core.memory.used_bytes


@pytest.mark.parametrize("rows", [3, 200, 255, 256])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
@pytest.mark.parametrize("whole", [True, False])
def test_a_share_that_is_settled_is_settled_in_the_next_life_too(rows: int, nodes: int, whole: bool) -> None:
    house = shared_house(nodes, rows)
    for name, queue in list(house.core.router.queues.items()):
        reader = Reader(house.core, queue)
        if name != "q":
            # The last message of each share decides where its rows end in the record.
            reader.settle(*range(0 if whole else 1, len(reader.tags), 1 if whole else 2))
            reader.settle(*(index for index in (len(reader.tags) - 1,) if not whole and index % 2 == 0 and index > 0))
    house.log.sync()
    for record in house.log.records:
        if record.kind == SETTLED:
            decode_settled(record.payload)
    before = state(house)
    later = next_life(house)
    assert state(later) == before
    later.check()


def test_when_the_last_share_is_settled_the_record_of_the_run_goes() -> None:
    house = shared_house(2, 9)
    for queue in list(house.core.router.queues.values()):
        assert [record.kind for record in house.log.living()].count(ROUTED) == 1
        reader = Reader(house.core, queue)
        reader.settle(*range(len(reader.tags)))
    assert ROUTED not in [record.kind for record in house.log.living()]
    assert house.core.memory.used_bytes == 0
    assert state(next_life(house)) == {name: [] for name in house.core.router.queues}


def test_the_share_of_a_queue_that_is_deleted_goes_and_the_others_stay() -> None:
    house = shared_house(2, 9)
    before = state(house)
    house.client().call("delete_queue", name="q")
    later = next_life(house)
    del before["q"]
    assert state(later) == before
    for queue in list(later.core.router.queues.values()):
        reader = Reader(later.core, queue)
        reader.settle(*range(len(reader.tags)))
    assert later.core.memory.used_bytes == 0
    assert ROUTED not in [record.kind for record in later.log.living()]


def test_a_multicast_run_stands_once_in_the_queue_for_a_node_with_all_its_queues_there() -> None:
    house = make_house(FakeLog())
    house.core.definitions.create_queue("n0", address="news", routing="multicast", durable=True)
    for number in (4, 5, 6):
        forward = bind(house, number=number, name=f"n{number}", address="news", routing="multicast")
    client = house.client()
    client.put(client.produce("news"), *numbered(5))
    for life in (house, next_life(house)):
        queue = life.core.router.queues[forward.name]
        reader = Reader(life.core, queue)
        assert [(body, queues) for _, body, queues in reader.got] == [(body, (4, 5, 6)) for body in numbered(5)]
        assert [body for _, body in state(life)["n0"]] == numbered(5)


def test_two_names_shared_differently_are_two_shares_in_one_queue_and_are_settled_apart() -> None:
    house = make_house(FakeLog())
    house.core.definitions.create_queue("n1", address="news", routing="multicast", durable=True)
    for number, name in ((4, "n1"), (5, "n2")):
        forward = bind(house, number=number, name=name, address="news", routing="multicast", mode="strict")
    client = house.client()
    client.put(client.produce("news"), *numbered(6))
    reader = Reader(house.core, forward)
    assert sorted((body, queues) for _, body, queues in reader.got) == [
        (b"0", (5,)), (b"1", (4, 5)), (b"2", (5,)), (b"3", (4, 5)), (b"4", (5,)), (b"5", (4, 5)),
    ]  # fmt: skip
    assert [number for number, _, _ in reader.got] == [1, 2, 3, 4, 5, 6]
    reader.settle(0, 4)
    left = {body for index, (_, body, _) in enumerate(reader.got) if index not in (0, 4)}
    later = next_life(house)
    assert {body for _, body in state(later)[forward.name]} == left
    later.check()


def test_the_numbers_of_a_store_and_forward_queue_never_begin_again() -> None:
    house = shared_house(1, 4)
    highest = 0
    for life in range(4):
        queue = house.core.router.queues["$meshq.cluster.mesh.n0"]
        reader = Reader(house.core, queue)
        numbers = [number for number, _, _ in reader.got]
        assert numbers == sorted(set(numbers))
        assert not numbers or numbers[0] > highest
        highest = max([highest, *numbers])
        reader.settle(*range(len(reader.tags)))
        bind(house, node="n0", mode="strict")
        client = house.client()
        client.put(client.produce("q", bytes([life]) * 16), *numbered(3), durable=bool(life % 2))
        new = [number for number, _, _ in reader.got if number > highest]
        assert len(reader.got) == len(numbers) + len(new)
        highest = max([highest, *new])
        reader.settle(*range(len(numbers), len(reader.tags)))
        house = next_life(house)


def test_a_repeat_is_dealt_to_nobody() -> None:
    house = make_house(FakeLog())
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    forward = bind(house, mode="strict")
    client = house.client()
    channel = client.produce("q")
    client.put(channel, b"0", b"1", envelopes=with_ids("0", "1"))
    client.put(channel, b"1", b"2", b"0", b"3", envelopes=with_ids("1", "2", "0", "3"))
    for life in (house, next_life(house)):
        found = state(life)
        assert sorted(body for part in found.values() for _, body in part) == [b"0", b"1", b"2", b"3"]
        assert len(found["q"]) == len(found[forward.name]) == 2
    again = next_life(house)
    bind(again, mode="strict")
    client = again.client()
    client.put(client.produce("q", b"p" * 16), *numbered(4), envelopes=with_ids("0", "1", "2", "3"))
    assert again.core.ingress.duplicates == 4


def test_a_producers_number_is_kept_in_what_is_forwarded_and_in_the_next_life() -> None:
    house = shared_house(1, 8)
    forward = house.core.router.queues["$meshq.cluster.mesh.n0"]
    for life in (house, next_life(house)):
        (view,) = life.core.router.queues[forward.name].runs()
        numbers = [view.run.number + row * view.run.number_step for row in range(4)]
        bodies = [int(RunView(view.run.content).body(row)) for row in range(4)]
        assert numbers == [body + 1 for body in bodies]


def test_the_mark_of_a_link_stays_when_its_runs_and_their_segments_are_gone() -> None:
    house = make_house(FakeLog())
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    peer = peer_of(house)
    channel = peer.open()
    for number in range(1, 6):
        peer.forward(channel, number, b"%d" % number)
    client = house.client()
    consumer = client.consume("q")
    client.settle(consumer, (1, 5))
    house.log.sync()
    assert ROUTED not in [record.kind for record in house.log.living()]
    house.log.checkpoint(house.core.checkpoint())
    house.log.sync()
    log = house.log.after_crash()
    # The journal has reclaimed all that is dead.
    records = [record for record in log.recovered() if record.kind not in (ROUTED, SETTLED)]
    assert LINKS in [record.kind for record in records]
    later = make_house(log, records=records)
    again = peer_of(later)
    channel = again.open()
    again.forward(channel, 4, b"4", b"5", b"6")
    assert [body for _, body in state(later)["q"]] == [b"6"]


def test_without_a_checkpoint_the_dead_record_still_says_how_far_the_link_was() -> None:
    house = make_house(FakeLog())
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    peer = peer_of(house)
    peer.forward(peer.open(), 1, b"1", b"2")
    client = house.client()
    client.settle(client.consume("q"), (1, 2))
    house.log.sync()
    log = house.log.after_crash()
    found = [record for record in log.recovered() if record.kind == ROUTED]
    assert [record.deleted for record in found] == [True]
    assert make_house(log, records=log.recovered()).core.ingress.links == {LINK: 2}


def test_a_checkpoint_has_all_links_and_replaces_the_one_before() -> None:
    house = make_house(FakeLog())
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    assert LINKS not in [kind for kind, _ in house.core.checkpoint()]
    peer = peer_of(house)
    for index in range(1, 4):
        peer.forward(peer.open(bytes([index]) * 16), index, b"x")
    found = dict(house.core.checkpoint())
    assert decode_links(found[LINKS]) == {bytes([index]) * 16: index for index in range(1, 4)}
    assert list(found) == [PRODUCERS, LINKS] or list(found) == [LINKS]


@pytest.mark.parametrize("cut", range(12))
def test_whatever_a_crash_leaves_of_the_receivers_journal_each_message_is_stored_once(cut: int) -> None:
    house = make_house(FakeLog())
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    house.log.sync()
    house.auto = False
    peer = peer_of(house)
    channel = peer.open()
    house.log.sync()
    for number in range(1, 9):
        peer.forward(channel, 2 * number - 1, b"%d" % (2 * number - 1), b"%d" % (2 * number))
        if number == 3:
            house.log.sync()
    cuts = house.log.cuts()
    last = cuts[min(cut, len(cuts) - 1)]
    confirmed = max([number for _, number in peer.confirmed], default=0)
    log = house.log.after_crash(last)
    later = make_house(log, records=house.log.recovered(last))
    again = peer_of(later)
    channel = again.open()
    # From the first that was not confirmed, as the sender's queue gives them again.
    for number in itertools.count(confirmed + 1):
        if number > 16:
            break
        again.forward(channel, number, b"%d" % number)
    assert sorted(int(body) for _, body in state(later)["q"]) == list(range(1, 17))
    assert again.confirmed[-1] == (channel, 16)


def test_a_link_that_shares_nothing_leaves_messages_where_they_are_sent() -> None:
    house = make_house(FakeLog())
    client = house.client()
    channel = client.produce("q")
    client.call("delete_queue", name="q")
    forward = bind(house, mode="off")
    # The address is there and its queue is not: it is made again, as if no other node had one.
    client.put(channel, b"x")
    assert [body for _, body in state(house)["q"]] == [b"x"]
    assert forward.counts.added == 0
    assert house.core.ingress.unrouted == 0


def test_where_queues_are_made_by_hand_only_what_another_node_has_and_keeps_is_not_here() -> None:
    house = make_house(FakeLog(), settings={"#": AddressSettings(auto_create_queues=False)})
    bind(house, mode="off")
    client = house.client()
    client.produce("q")
    assert client.code != 0
    bind(house, mode="on_demand", consumers=0)
    channel = client.produce("q")
    assert client.code == 0
    client.put(channel, b"x")
    assert [body for _, body in state(house)["$meshq.cluster.mesh.there"]] == [b"x"]
