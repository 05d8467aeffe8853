"""What waited for another node and was routed anew: what it says of who sent it, and what not, over a restart."""

from __future__ import annotations

import pytest

from meshq import limits
from meshq.abc import ForwardRun
from meshq.address import TEMPORARY
from meshq.broker.catalog._distribution_plan import RemoteBinding
from meshq.broker.management._queue_operations import given_back as given_back_steps
from meshq.node._local_broker import ForwardQueue
from meshq.settings import AddressSettings
from meshq.wire import KIND_CONTROL, KIND_HEADERS, Envelope, encode_map
from tests.broker.kit import PRODUCER, House, make_house, with_ids
from tests.broker.logs import FakeLog
from tests.broker.peers import bind, peer_of
from tests.broker.test_clocks import JUMPS, TwoClocks

REMEMBERED = 4
SETTINGS = {"q": AddressSettings(duplicate_id_cache_size=REMEMBERED)}
NAMES = [str(number) for number in range(2 * REMEMBERED)]


def given_back() -> House:
    """As many messages as ids are remembered wait for a node, as many others come, and the first are given back."""
    house = make_house(FakeLog(), settings=SETTINGS)
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    forward = bind(house)
    client = house.client()
    sender = client.produce("q")
    for names in (NAMES[:REMEMBERED], NAMES[REMEMBERED:]):
        client.put(sender, *(name.encode() for name in names), envelopes=with_ids(*names))
        house.core.router.replace(forward.number.to_bytes(8, "big"), [])
    assert (forward.counts.ready, house.queue().counts.ready) == (REMEMBERED, REMEMBERED)
    assert client.call("give_back", node_id="there", force=True) == {"moved": REMEMBERED}
    house.rest()
    assert (forward.counts.ready, house.queue().counts.ready) == (0, 2 * REMEMBERED)
    return house


def test_the_last_duplicate_ids_are_known_in_the_next_life_whatever_was_given_back() -> None:
    log = given_back().log.after_crash()
    house = make_house(log, records=log.recovered(), settings=SETTINGS)
    client = house.client()
    client.put(client.produce("q", b"p" * 16), *[b"again"] * REMEMBERED, envelopes=with_ids(*NAMES[REMEMBERED:]))
    assert (house.core.ingress.duplicates, house.queue().counts.ready) == (REMEMBERED, 2 * REMEMBERED)


def test_who_sent_something_elsewhere_has_stored_nothing_here_though_it_was_given_back_here() -> None:
    settings = {"q": AddressSettings(auto_create_queues=False)}
    house = make_house(FakeLog(), settings=settings)
    forward = bind(house)
    peer = peer_of(house)
    # For a queue that is gone: a node further on has another one.
    peer.forward(peer.open(), 1, b"1", b"3", b"5", queues=(99,), number=1, stride=2)
    house.core.router.replace(forward.number.to_bytes(8, "big"), [])
    assert forward.counts.ready == 3
    assert house.client().call("give_back", node_id="there", force=True) == {"moved": 3}
    house.rest()
    for _ in range(2):
        assert (house.queue().counts.ready, house.core.ingress.producers.get(PRODUCER)) == (3, None)
        log = house.log.after_crash()
        house = make_house(log, records=log.recovered(), settings=settings)


def test_nothing_is_given_back_any_more_once_the_node_was_linked_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    house = make_house(FakeLog(), settings=SETTINGS)
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    forward = bind(house)
    client = house.client()
    sender = client.produce("q")
    for body in (b"1", b"2", b"3", b"4", b"5"):
        client.put(sender, body)
    house.core.router.replace(forward.number.to_bytes(8, "big"), [])
    waiting, here = forward.counts.ready, house.queue().counts.ready
    assert waiting > 1
    monkeypatch.setattr(limits, "STEP_MESSAGES_MAX", 1)
    steps = given_back_steps(house.core, None, [forward])
    assert next(steps) is None
    # It takes all, and is gone before it has said so.
    given: list[ForwardRun] = []
    link = ForwardQueue(house.core, forward)
    link.attach(given.append, 0)
    house.rest()
    link.detach()
    assert len(given) == waiting - 1
    *_, last = steps
    assert last == {"moved": 1}
    house.rest()
    assert (forward.counts.ready, house.queue().counts.ready) == (waiting - 1, here + 1)


@pytest.mark.parametrize("jump", JUMPS)
@pytest.mark.parametrize("headers", [{"d": 5_000}, {"d": 5_000, "x": 86_400_000}])
def test_what_is_given_back_is_due_when_it_was_to_be_whatever_the_wall_clock_does(
    jump: int, headers: dict[str, int]
) -> None:
    clocks = TwoClocks()
    house = make_house(FakeLog(), settings=SETTINGS, now_ms=clocks, elapsed_ms=clocks.passed)
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    forward = bind(house)
    client = house.client()
    envelope = Envelope(4 << 8 | KIND_CONTROL | KIND_HEADERS, b"", encode_map(headers), b"")
    client.put(client.produce("q"), b"later", envelopes=[envelope])
    house.core.router.replace(forward.number.to_bytes(8, "big"), [])
    clocks.jump(jump)
    clocks.move(house, 3_000)
    assert client.call("give_back", node_id="there", force=True) == {"moved": 1}
    house.rest()
    clocks.move(house, 1_999)
    assert (house.queue().scheduled.messages, house.queue().counts.ready) == (1, 0)
    clocks.move(house, 1)
    assert (house.queue().scheduled.messages, house.queue().counts.ready) == (0, 1)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("name", [f"{TEMPORARY}somebody", "taken"])
def test_what_has_no_other_place_stays_and_holds_nothing_up(name: str, known: bool) -> None:
    house = make_house(FakeLog(), settings={"taken": AddressSettings(auto_create_queues=False)})
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    house.core.definitions.create_queue("taken", address="another", routing="anycast", durable=True)
    queues = list(house.core.router.queues)
    forward = bind(house, number=8, name=name, address=name)
    bind(house)
    client = house.client()
    for number, address in enumerate((name, "q")):
        client.put(client.produce(address, b"%16d" % number), b"x")
    assert forward.counts.ready == 2
    link = forward.number.to_bytes(8, "big")
    if known:
        house.core.router.mark_gone(link, "left")
    else:
        house.core.router.replace(link, [])
    assert client.call("give_back", node_id="there", force=True) == {"moved": 1}
    assert (forward.counts.ready, house.queue().counts.ready) == (1, 1)
    assert list(house.core.router.queues) == [*queues, forward.name]


def test_nothing_of_a_second_queue_for_a_node_is_given_back_once_it_was_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    house = make_house(FakeLog())
    core = house.core
    core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    forwards = []
    client = house.client()
    sender = client.produce("q")
    for cluster in ("mesh", "other"):
        forward = core.definitions.forward_queue(f"$meshq.cluster.{cluster}.there")
        link_name = forward.number.to_bytes(8, "big")
        core.router.bind(link_name, RemoteBinding(forward, "on_demand", 7, "q", "q", "anycast", 1, ()))
        for body in (b"1", b"2", b"3"):
            client.put(sender, body)
        core.router.replace(link_name, [])
        forwards.append(forward)
    waiting = forwards[1].counts.ready
    assert waiting
    monkeypatch.setattr(limits, "STEP_MESSAGES_MAX", 1)
    steps = given_back_steps(core, None, forwards)
    next(steps)
    given: list[ForwardRun] = []
    link = ForwardQueue(core, forwards[1])
    link.attach(given.append, 0)
    house.rest()
    link.detach()
    assert given
    for _ in steps:
        pass
    house.rest()
    assert forwards[1].counts.ready == waiting
