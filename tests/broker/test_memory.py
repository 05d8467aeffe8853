"""One bound on memory: what is granted, who waits, and that nobody waits for ever."""

from __future__ import annotations

from typing import Any

import attrs
import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from meshq import limits
from meshq.broker import EventBus
from meshq.broker.ingress._memory import GRANT_BYTES_MIN, MEMORY_PER_FRAME, MemoryBound
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import RUN_OVERHEAD_BYTES
from meshq.wire import BY_NAME, HEAD_BYTES, RUN_ROW_BYTES
from tests.broker.hosts import FakePageRequests
from tests.broker.kit import make_house

MIB = limits.MIB
SMALLEST = HEAD_BYTES + RUN_ROW_BYTES


@attrs.define(eq=False)
class Sender:
    """A session that counts how often it was told of credit."""

    granted_bytes: int = 0
    sent_bytes: int = 0
    told: int = 0
    log: list[Sender] = attrs.field(factory=list, repr=False)

    def credit_changed(self) -> None:
        self.told += 1
        self.log.append(self)

    @property
    def may_send(self) -> bool:
        return self.sent_bytes < self.granted_bytes


def cost(frame_bytes: int) -> int:
    """The memory that a kept frame takes."""
    return frame_bytes - HEAD_BYTES + RUN_OVERHEAD_BYTES


def send(bound: MemoryBound, sender: Sender, size: int, *, kept: bool = True) -> int:
    """A frame comes and, unless it is refused, is kept; returns the memory that it takes."""
    assert sender.may_send
    used = cost(size) if kept else 0
    bound.used_bytes += used
    bound.received(sender, size)
    return used


def bound_of(limit_bytes: int) -> MemoryBound:
    return MemoryBound(
        limit_bytes, event_bus=EventBus(), press=FakePageRequests().wake, schedule_dispatch=list[Queue]().append
    )


def opened(bound: MemoryBound, count: int) -> list[Sender]:
    senders = [Sender() for _ in range(count)]
    for sender in senders:
        bound.open(sender)
    return senders


def test_the_smallest_frame_takes_no_more_memory_than_it_is_counted_for() -> None:
    assert cost(SMALLEST) <= SMALLEST * MEMORY_PER_FRAME


def test_a_session_starts_small_and_earns_more() -> None:
    bound = bound_of(1_000 * MIB)
    (sender,) = opened(bound, 1)
    assert sender.granted_bytes == GRANT_BYTES_MIN
    dispatches = []
    for _ in range(200):
        bound.used_bytes -= send(bound, sender, 60_000)
        dispatches.append(sender.granted_bytes - sender.sent_bytes)
    assert max(dispatches) > limits.SEND_CREDIT_BYTES
    assert min(dispatches[-50:]) > 0
    assert bound.reserved_bytes == sender.granted_bytes - sender.sent_bytes
    assert sender.told < 60


def test_credit_is_told_of_only_when_half_is_used() -> None:
    bound = bound_of(1_000 * MIB)
    (sender,) = opened(bound, 1)
    for _ in range(10):
        send(bound, sender, 3_000, kept=False)
    assert sender.told == 1
    send(bound, sender, 3_000, kept=False)
    assert sender.told == 2


def test_what_was_overdrawn_is_made_good_first() -> None:
    bound = bound_of(1_000 * MIB)
    (sender,) = opened(bound, 1)
    send(bound, sender, 5 * MIB)
    assert sender.granted_bytes == 5 * MIB + limits.SEND_CREDIT_BYTES
    assert bound.reserved_bytes == limits.SEND_CREDIT_BYTES


def test_at_the_limit_everybody_waits_and_goes_on_in_order_when_memory_is_freed() -> None:
    bound = bound_of(MIB)
    first, second, third = opened(bound, 3)
    send(bound, second, 2 * MIB)
    send(bound, first, GRANT_BYTES_MIN)
    assert not first.may_send and not second.may_send
    assert third.may_send
    fourth = opened(bound, 1)[0]
    assert not fourth.may_send
    assert bound.waiting == 3
    order: list[Sender] = []
    for sender in (first, second, third, fourth):
        sender.log = order
    bound.released(cost(2 * MIB))
    assert order == [second, first, fourth]
    assert bound.waiting == 0


def test_sessions_that_send_nothing_keep_nobody_from_sending() -> None:
    bound = bound_of(MIB)
    opened(bound, 100)
    late = opened(bound, 1)[0]
    for _ in range(20):
        assert late.may_send
        bound.released(send(bound, late, 30_000))
    assert bound.used_bytes == 0


def test_a_session_that_opens_when_there_is_no_memory_may_send_once_there_is() -> None:
    bound = bound_of(MIB)
    bound.used_bytes = MIB
    (sender,) = opened(bound, 1)
    assert not sender.may_send
    bound.released(1)
    assert sender.may_send


def test_frames_that_are_not_kept_wake_those_who_wait() -> None:
    bound = bound_of(MIB)
    bound.used_bytes = MIB - 10
    first, second = opened(bound, 2)
    assert first.granted_bytes == second.granted_bytes == 1
    bound.used_bytes = MIB
    send(bound, first, 100, kept=False)
    assert bound.waiting == 1
    # What is used falls without anybody releasing it: a run that was refused.
    bound.used_bytes = MIB - 10
    send(bound, second, 100, kept=False)
    assert first.may_send and second.may_send


def test_a_session_that_ends_gives_back_what_it_was_promised() -> None:
    bound = bound_of(MIB)
    senders = opened(bound, 5)
    bound.close(senders[0])
    assert bound.reserved_bytes == sum(sender.granted_bytes for sender in senders[1:])
    for sender in senders[1:]:
        bound.close(sender)
    assert bound.reserved_bytes == 0
    bound.used_bytes = MIB
    waiting = opened(bound, 2)
    bound.close(waiting[0])
    assert bound.waiting == 1
    bound.released(MIB)
    assert waiting[1].may_send and not waiting[0].may_send


def test_a_full_disk_withholds_all_grants() -> None:
    bound = bound_of(MIB)
    bound.blocked = True
    (sender,) = opened(bound, 1)
    bound.released(0)
    assert not sender.may_send
    bound.blocked = False
    bound.released(0)
    assert sender.may_send


# -- through a broker


def test_credit_is_counted_frame_by_frame_and_what_goes_beyond_breaks_the_protocol() -> None:
    house = make_house(memory=MIB)
    client = house.client()
    producer = client.produce()
    assert client.granted == GRANT_BYTES_MIN
    client.put(producer, bytes(MIB))
    assert not client.sent < client.granted
    client.put(producer, b"x")
    assert client.good_bye().code == BY_NAME["no_credit"].number


def test_a_producer_waits_while_memory_is_full_and_goes_on_when_a_consumer_settles() -> None:
    house = make_house(memory=MIB)
    client = house.client()
    producer = client.produce()
    client.put(producer, bytes(MIB))
    assert house.core.memory.waiting == 1
    reader = house.client()
    consumer = reader.consume()
    assert client.sent >= client.granted
    reader.settle(consumer, (1, 1))
    assert client.sent < client.granted
    assert house.core.memory.used_bytes == 0


# -- any order


class BoundModel(RuleBasedStateMachine):
    """Sessions that do as they please; after each step the bound holds but for one frame of each."""

    FRAME_MAX = 200_000

    def __init__(self) -> None:
        super().__init__()
        self.senders: list[Sender] = []
        self.held: list[int] = []
        self.opened = 0

    @initialize(limit=st.sampled_from([MIB, 3 * MIB, 40 * MIB]))
    def begin(self, limit: int) -> None:
        self.bound = bound_of(limit)

    @rule()
    def open(self) -> None:
        self.senders += opened(self.bound, 1)
        self.opened += 1

    @precondition(lambda self: self.senders)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        sender = data.draw(st.sampled_from(self.senders))
        self.senders.remove(sender)
        self.bound.close(sender)

    @precondition(lambda self: any(sender.may_send for sender in self.senders))
    @rule(data=st.data(), size=st.sampled_from([SMALLEST, 1_000, 70_000, FRAME_MAX]), kept=st.booleans())
    def send(self, data: st.DataObject, size: int, kept: bool) -> None:
        sender = data.draw(st.sampled_from([sender for sender in self.senders if sender.may_send]))
        used = send(self.bound, sender, size, kept=kept)
        if used:
            self.held.append(used)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        used = data.draw(st.sampled_from(self.held))
        self.held.remove(used)
        self.bound.released(used)

    @rule()
    def settle_all(self) -> None:
        for used in self.held:
            self.bound.released(used)
        self.held.clear()
        assert all(sender.may_send for sender in self.senders), "with all memory free nobody waits"

    @rule(blocked=st.booleans())
    def disk(self, blocked: bool) -> None:
        self.bound.blocked = blocked
        self.bound.released(0)
        if blocked:
            # Whoever has credit may use it; nobody gets any.
            self.bound.blocked = False
            self.bound.released(0)

    @invariant()
    def holds(self) -> None:
        bound: Any = getattr(self, "bound", None)
        if bound is None:
            return
        assert bound.used_bytes == sum(self.held)
        promised = [max(0, sender.granted_bytes - sender.sent_bytes) for sender in self.senders]
        assert bound.reserved_bytes == sum(promised)
        # Sessions that ended may have left a last frame, too.
        beyond = self.opened * cost(self.FRAME_MAX)
        assert bound.used_bytes + bound.reserved_bytes <= bound.limit_bytes + beyond
        if bound.used_bytes < bound.limit_bytes and not bound.blocked:
            assert all(sender.may_send for sender in self.senders), "while there is memory, nobody waits"
        waiting = sum(not sender.may_send for sender in self.senders)
        assert bound.waiting == waiting


TestBoundModel = BoundModel.TestCase
TestBoundModel.settings = settings(max_examples=60, stateful_step_count=40)
