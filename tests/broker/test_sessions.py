"""Sessions at the broker, in raw frames: what survives a broken link, and what ends one."""

from __future__ import annotations

import pytest

from meshq import limits
from meshq.broker import SessionBounds
from meshq.broker.session._session_registry import SessionRegistry
from meshq.wire import (
    BY_NAME,
    FLAG_RESENT,
    Attach,
    Attached,
    Authenticate,
    Close,
    ConsumerLost,
    Frame,
    FrameType,
    Hello,
    Produce,
    Welcome,
    header_of,
)
from tests.broker.kit import PRODUCER, Clock, FakeLog, House, RawClient, make_house


def opened(house: House, **options: int) -> tuple[RawClient, int, int]:
    client = house.client(**options)
    return client, client.produce(), client.consume()


def code(name: str) -> int:
    return BY_NAME[name].number


def later(house: House, seconds: float) -> float | None:
    """Time goes by; returns when the next session ends."""
    clock = house.clock
    assert isinstance(clock, Clock)
    clock.now += seconds
    return house.sessions.expire()


# -- the handshake


def test_a_handshake_makes_a_session_and_grants_credit() -> None:
    house = make_house()
    client = house.client(ttl_ms=5_000)
    welcome = header_of(client.last(FrameType.WELCOME), Welcome)
    assert (welcome.version, welcome.node_name, welcome.mechanisms) == (1, "node", ("none",))
    assert client.attached is not None
    assert (client.attached.session, client.attached.resumed, client.attached.ttl_ms) == (1, False, 5_000)
    assert client.granted > 0
    assert repr(house.sessions.by_number[1]) == "<Session 1 'test' at client producers=0 consumers=0>"
    assert house.counts.accepted == 1


@pytest.mark.parametrize(("asked", "granted"), [(0, limits.SESSION_TTL_S_MIN), (10**9, 3_600)])
def test_a_time_to_live_is_kept_within_bounds(asked: int, granted: float) -> None:
    client = make_house().client(ttl_ms=asked)
    assert client.attached is not None and client.attached.ttl_ms == granted * 1_000
    assert client.server.ttl == granted


@pytest.mark.parametrize(
    ("frame", "refusal"),
    [
        (Hello(oldest=1, newest=1, role="spy"), "role_not_served"),
        (Hello(oldest=7, newest=9), "no_common_version"),
        (Hello(oldest=2, newest=1), "bad_header"),
        (Authenticate(mechanism="none"), "illegal_frame"),
        (Attach(), "illegal_frame"),
    ],
)
def test_a_handshake_that_begins_wrong_is_refused(frame: Hello | Authenticate | Attach, refusal: str) -> None:
    house = make_house()
    client = house.client(attach=False)
    client.send(frame.frame_type, frame)
    assert client.good_bye().code == code(refusal)
    assert client.closed and house.sessions.by_number == {}
    assert house.counts.violations == (refusal != "role_not_served")


def test_a_mechanism_that_is_not_offered_is_refused() -> None:
    for trusted, mechanism in ((True, "scram"), (False, "none")):
        house = make_house()
        client = house.client(attach=False)
        client.link, _ = house.link(trusted=trusted)
        client.link.start(client.receiver)
        client.send(FrameType.HELLO, Hello(oldest=1, newest=1))
        offered = header_of(client.last(FrameType.WELCOME), Welcome).mechanisms
        assert offered == (("none",) if trusted else ())
        client.send(FrameType.AUTHENTICATE, Authenticate(mechanism=mechanism))
        assert client.good_bye().code == code("unknown_mechanism")
        assert house.counts.violations == 0


def test_a_frame_of_the_handshake_has_no_number() -> None:
    client = make_house().client(attach=False)
    frame = Frame(FrameType.HELLO, header=Hello(oldest=1, newest=1).encode(), number=1)
    client.link.send(frame)
    client.link.flush()
    assert client.good_bye().code == code("bad_number")


@pytest.mark.parametrize("closing", [True, False])
def test_a_node_without_room_or_on_its_way_out_makes_no_session(monkeypatch: pytest.MonkeyPatch, closing: bool) -> None:
    house = make_house()
    first = house.client()
    if closing:
        house.core.closing.begin("the node is stopping")
    else:
        monkeypatch.setattr(limits, "SESSIONS_MAX", 1)
    second = RawClient(house)
    for header in (Hello(oldest=1, newest=1), Authenticate(mechanism="none"), Attach()):
        second.send(header.frame_type, header)
    assert second.good_bye().code == code("not_active" if closing else "too_many_sessions")
    assert house.counts.violations == 0
    # Who has a session comes back to it.
    first.drop()
    assert first.resume().resumed


# -- resuming


def test_a_resumed_session_goes_on_where_it_was_and_nothing_is_lost_doubled_or_redelivered() -> None:
    house = make_house(FakeLog())
    client, producer, consumer = opened(house)
    client.put(producer, b"1", b"2")
    client.settle(consumer, (1, 1))
    # Two frames are on their way when the link breaks: one never arrives, the answer to the other doesn't either.
    client.deaf = True
    client.put(producer, b"3")
    client.drop()
    client.put(producer, b"4")
    client.settle(consumer, (2, 2))
    assert house.sessions.by_number[1].stream.link is None
    assert client.resume().resumed
    assert client.bodies(consumer) == [b"1", b"2", b"3", b"4"]
    assert [message.delivery_count for message in client.got(consumer)] == [1, 1, 1, 1]
    assert client.confirmed[-1] == (producer, 4)
    queue = house.queue()
    assert (queue.counts.acknowledged, queue.counts.unacked, queue.counts.added, queue.counts.redelivered) == (
        2,
        2,
        4,
        0,
    )
    assert house.sessions.resumed == 1
    client.settle(consumer, (3, 4))
    assert queue.counts.unacked == 0


def test_nothing_is_delivered_while_nobody_is_there_and_everything_afterwards() -> None:
    house = make_house()
    client, _, consumer = opened(house)
    other = house.client()
    channel = other.produce(producer=b"q" * 16)
    client.drop()
    other.put(channel, b"1")
    assert (house.queue().counts.ready, house.queue().counts.unacked) == (1, 0)
    client.resume()
    assert client.bodies(consumer) == [b"1"]


def test_what_was_said_while_nobody_was_there_is_kept_and_said_again() -> None:
    house = make_house(FakeLog())
    house.auto = False
    client = house.client()
    client.request(FrameType.PRODUCE, Produce(producer=PRODUCER, address="q"), channel=1)
    client.drop()
    house.log.sync()
    client.resume()
    answer = client.answer(1)
    assert answer is not None and answer.named == {"number": 0, "known": False, "remembered": 20_000}


def test_credit_is_counted_on_across_a_resume() -> None:
    house = make_house(memory=64 * limits.MIB)
    client, producer, _ = opened(house)
    client.put(producer, bytes(10_000))
    client.drop()
    client.put(producer, bytes(10_000))
    client.resume()
    session = house.sessions.by_number[1]
    assert (session.credit.sent_bytes, session.credit.granted_bytes) == (client.sent, client.granted)
    while client.sent < client.granted:
        client.put(producer, bytes(30_000))
    assert not client.all_closed()


@pytest.mark.parametrize("changed", [{"key": b"x" * 16}, {"session": 7}, {"session": 0, "key": b""}])
def test_whoever_cannot_show_the_key_gets_another_session(changed: dict[str, object]) -> None:
    house = make_house()
    client, _, _ = opened(house)
    client.drop()
    attached = client.resume(**changed, received=0)  # type: ignore[arg-type]
    assert not attached.resumed and attached.session == 2
    assert attached.received == 0
    assert 1 in house.sessions.by_number


@pytest.mark.parametrize("received", [0, 10**6])
def test_a_client_that_lacks_what_it_had_or_has_more_than_was_said_loses_its_session(received: int) -> None:
    house = make_house(FakeLog())
    client, producer, consumer = opened(house)
    client.put(producer, b"1")
    client.settle(consumer, (1, 1))
    client.drop()
    client.resume(received=received)
    assert client.good_bye().code == code("bad_number")
    assert house.sessions.by_number == {}


def test_a_session_is_taken_over_from_a_link_that_only_seems_alive() -> None:
    house = make_house()
    client, producer, consumer = opened(house)
    client.put(producer, b"1")
    old_receiver, old_server = client.receiver, client.server
    farewell: list[Frame] = []
    old_receiver.frames = farewell.extend
    old_receiver.lost = lambda: None
    assert client.resume().resumed
    assert header_of(farewell[-1], Close).code == code("session_taken")
    assert [frame.type for frame in farewell] == [FrameType.CLOSE]
    assert old_server.closed and old_server.session is None
    client.put(producer, b"2")
    assert client.bodies(consumer) == [b"1", b"2"]
    # The old link has no say any more.
    old_server.lost()
    assert house.sessions.by_number[1].stream.link is client.server._link


def test_a_link_within_the_process_keeps_nothing_so_its_session_ends_with_it() -> None:
    house = make_house()
    client = house.client(lossless=True)
    producer, consumer = client.produce(), client.consume()
    client.put(producer, b"1")
    assert client.bodies(consumer) == [b"1"]
    thief = RawClient(house)
    assert client.attached is not None
    attached = thief.shake(session=client.attached.session, key=client.attached.key, received=3)
    assert not attached.resumed
    client.drop()
    assert list(house.sessions.by_number) == [attached.session]
    assert (house.queue().counts.ready, house.queue().roster.consumers) == (1, [])


def test_a_session_that_comes_back_to_more_than_its_window_gets_nothing_new_until_it_has_reported() -> None:
    house = make_house()
    client = house.client(window_bytes=64 * 1024)
    consumer = client.consume("q", 1_000, 1 << 40)
    other = house.client()
    producer = other.produce(producer=b"q" * 16)
    client.deaf = True
    for _ in range(10):
        other.put(producer, bytes(20_000))
    held = house.queue().counts.unacked
    assert 3 <= held <= 5
    client.drop()
    client.mute = True
    client.resume()
    assert (len(client.got(consumer)), house.queue().counts.unacked) == (held, held)
    client.mute = False
    for _ in range(4):
        client.send(FrameType.RECEIVED)
    assert len(client.got(consumer)) == 10


def test_a_time_to_live_may_change_with_each_resume() -> None:
    house = make_house()
    client, _, _ = opened(house, ttl_ms=60_000)
    client.drop()
    client.resume(ttl_ms=2_000)
    assert client.server.ttl == 2.0
    client.drop()
    assert later(house, 2.0) is None
    assert house.sessions.by_number == {}


# -- the end of a session


def test_a_session_ends_when_its_client_does_not_come_back_in_time() -> None:
    house = make_house()
    told: list[int] = []
    house.sessions = SessionRegistry(
        house.core, house.clock, 3_600.0, detached=lambda: told.append(1), admission=SessionBounds()
    )
    client, producer, consumer = opened(house, ttl_ms=10_000)
    client.put(producer, b"1")
    client.drop()
    other = house.client(ttl_ms=1_000)
    assert told == [1]
    other.drop()
    assert told == [1, 1]
    assert later(house, 0) == 1.0
    assert later(house, 1.0) == 10.0
    assert later(house, 8.9) == 10.0
    assert house.queue().counts.unacked == 1
    assert later(house, 0.2) is None
    assert (house.queue().counts.unacked, house.queue().counts.ready, house.sessions.expired) == (0, 1, 2)
    assert not client.resume(received=0).resumed
    reader = house.client()
    assert [message.delivery_count for message in reader.got(reader.consume())] == [2]
    assert consumer == 2


def test_a_session_that_is_attached_does_not_expire() -> None:
    house = make_house()
    client, _, _ = opened(house, ttl_ms=1_000)
    assert later(house, 100) is None
    client.drop()
    client.resume()
    assert later(house, 100) is None
    assert 1 in house.sessions.by_number


def test_a_good_bye_ends_the_session_and_one_with_a_reason_does_not() -> None:
    for reason in (0, 5):
        house = make_house()
        client, producer, _ = opened(house)
        client.put(producer, b"1")
        client.send(FrameType.CLOSE, Close(code=reason))
        assert client.closed
        assert (len(house.sessions.by_number), house.queue().counts.ready) == ((0, 1) if reason == 0 else (1, 0))
        assert house.core.memory.reserved_bytes == 0 or reason


def test_a_good_bye_has_no_number() -> None:
    house = make_house()
    client, _, _ = opened(house)
    client.link.send(Frame(FrameType.CLOSE, header=Close().encode(), number=9))
    client.link.flush()
    assert (client.closed, house.counts.violations, house.sessions.by_number) == (True, 1, {})


def test_a_session_may_end_while_its_messages_wait_for_the_disk() -> None:
    house = make_house(FakeLog())
    client, producer, consumer = opened(house)
    client.put(producer, b"0")
    house.auto = False
    client.put(producer, b"1")
    client.settle(consumer, (1, 1), call=50)
    client.call("flush")
    client.call("create_queue", name="late")
    client.close()
    house.log.sync()
    assert house.queue().counts.ready == 1
    assert house.core.ingress.producers.get(PRODUCER) == 2
    assert "late" in house.core.router.queues
    house.check()


def test_other_sessions_are_served_while_one_breaks_the_protocol() -> None:
    house = make_house()
    good, producer, consumer = opened(house)
    bad = house.client()
    bad.consume("q", 1)
    good.put(producer, b"1", b"2")
    assert sorted([*good.bodies(consumer), *bad.bodies(1)]) == [b"1", b"2"]
    bad.settle(1, (5, 5))
    assert bad.good_bye().code == code("bad_tag") and bad.closed
    assert sorted(good.bodies(consumer)) == [b"1", b"2"]
    assert (house.counts.violations, len(house.sessions.by_number)) == (1, 1)
    house.check()


def test_nothing_that_comes_behind_a_violation_is_taken() -> None:
    house = make_house()
    client, producer, consumer = opened(house)
    client.settle(consumer, (1, 1))
    assert client.closed
    before = house.queue().counts.added
    client.closed = False
    client.put(producer, b"1")
    assert house.queue().counts.added == before
    assert len(client.all(FrameType.CLOSE)) == 1


# -- consumers that lose their queue


@pytest.mark.parametrize("away", [False, True])
def test_a_deleted_queue_takes_its_consumers_along_and_says_so(away: bool) -> None:
    house = make_house()
    client, producer, consumer = opened(house)
    client.put(producer, b"1")
    if away:
        client.drop()
    other = house.client()
    other.call("delete_queue", name="q")
    if away:
        client.resume()
    lost = client.last(FrameType.CONSUMER_LOST)
    assert (lost.channel, header_of(lost, ConsumerLost).code) == (consumer, code("queue_deleted"))
    # What the client had sent before it knew breaks no rule; it is told that it was in vain.
    client.settle(consumer, (1, 1), call=90)
    answer = client.answer(90)
    assert answer is not None and answer.code == code("stale_delivery")
    client.settle(consumer, (1, 1))
    client.leave(consumer)
    assert not client.all_closed()
    client.put(producer, b"2")
    assert house.queue().counts.ready == 1


def test_a_settlement_that_crossed_the_end_of_its_consumer_may_come_by_way_of_a_resume() -> None:
    house = make_house()
    client, producer, consumer = opened(house)
    client.put(producer, b"1")
    other = house.client()
    # The link loses what the client sends, and still brings what the node says.
    client.server.frames = lambda frames: None
    client.settle(consumer, (1, 1))
    other.call("delete_queue", name="q")
    assert client.all(FrameType.CONSUMER_LOST)
    client.drop()
    client.resume()
    assert not client.all_closed()


def test_consumers_that_were_lost_are_remembered_as_long_as_there_may_be_so_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CHANNELS_MAX", 2)
    house = make_house()
    client = house.client()
    channels = []
    for _ in range(3):
        channels.append(client.consume("q"))
        client.call("delete_queue", name="q")
    client.settle(channels[1], (1, 1))
    assert not client.all_closed()
    client.settle(channels[0], (1, 1))
    assert client.good_bye().code == code("bad_channel")


def test_a_resend_flag_is_no_violation_in_a_session_that_never_sent() -> None:
    house = make_house()
    client, producer, _ = opened(house)
    client.put(producer, b"1", flags=FLAG_RESENT)
    assert client.confirmed == [(producer, 1)]


def test_what_a_session_says_after_its_good_bye_goes_nowhere() -> None:
    house = make_house(FakeLog())
    client, producer, _ = opened(house)
    house.auto = False
    client.put(producer, b"1")
    client.server.say_close(code("stopping"), "the node is stopping")
    house.log.sync()
    assert client.frames[-1].type is FrameType.CLOSE
    client.put(producer, b"2")
    assert (house.counts.violations, len(house.sessions.by_number)) == (0, 1)
    attached = header_of(client.all(FrameType.ATTACHED)[0], Attached)
    assert not attached.resumed
