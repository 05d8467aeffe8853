"""One queue with several consumers, beside a model that is a list of messages."""

from __future__ import annotations

from typing import Any

import attrs
import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from meshq.broker._consumer_state import ConsumerState
from meshq.errors import RemoteProtocolError
from tests.broker.queues import give_back, join, make_queue, numbers, put, settle

READY, HELD, GONE = "ready", "held", "gone"


@attrs.define
class Message:
    """What the model knows of a message."""

    number: int
    size: int
    durable: bool
    state: str = READY
    delivered: int = 0
    granted: bool = False


@attrs.define
class Reader:
    """What the model knows of a consumer: what each tag is, until it is settled."""

    state: ConsumerState
    tags: dict[int, Message] = attrs.field(factory=dict)
    next_tag: int = 1

    def bytes(self) -> int:
        return sum(message.size for message in self.tags.values())

    def has_room_for(self, size: int) -> bool:
        if not self.state.willing or len(self.tags) >= self.state.window:
            return False
        return not self.tags or self.bytes() + size <= self.state.window_bytes


class QueueModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []
        self.readers: list[Reader] = []
        self.readers_made = 0
        self.out = dict.fromkeys(("acknowledged", "rejected", "purged", "redelivered"), 0)

    @initialize(mark=st.sampled_from([0, 5, 1_000_000]))
    def begin(self, mark: int) -> None:
        self.queue = make_queue(mark=mark)

    def ready(self) -> list[Message]:
        return [message for message in self.messages if message.state == READY]

    # -- what comes in

    @rule(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12), durable=st.booleans())
    def place(self, sizes: list[int], durable: bool) -> None:
        view = put(self.queue, sizes=sizes, durable=durable)
        self.messages += [Message(view.first + row, size, durable) for row, size in enumerate(sizes)]

    @rule(hole=st.integers(1, 5))
    def leave_a_hole(self, hole: int) -> None:
        self.queue.number_rows(hole)

    @precondition(lambda self: len(self.readers) < 4)
    @rule(window=st.integers(1, 12), window_bytes=st.sampled_from([1, 20, 60, 1_000]))
    def open(self, window: int, window_bytes: int) -> None:
        self.readers_made += 1
        self.readers.append(Reader(join(self.queue, window, window_bytes, number=self.readers_made)))

    # -- what goes out

    @rule(budget=st.sampled_from([1, 5, 1_000]))
    def step(self, budget: int) -> None:
        self.take_grants(budget)

    @rule()
    def dispatch_all(self) -> None:
        while self.take_grants(1_000):
            pass
        ready = self.ready()
        if ready:
            first = ready[0]
            gated = first.durable and not first.granted and first.number > self.queue.mark
            assert gated or not any(reader.has_room_for(first.size) for reader in self.readers)
            assert (
                not gated
                or self.queue.mark_wanted >= first.number
                or not any(reader.has_room_for(first.size) for reader in self.readers)
            )

    def take_grants(self, budget: int) -> int:
        grants = self.queue.dispatch(budget)
        given: list[Message] = []
        by_number = {message.number: message for message in self.messages}
        for consumer, grant in grants:
            (reader,) = [reader for reader in self.readers if reader.state is consumer]
            assert grant.tag == reader.next_tag
            for number in numbers(grant):
                message = by_number[number]
                assert message.state == READY and reader.has_room_for(message.size)
                assert message.granted or not message.durable or number <= self.queue.mark
                message.state, message.granted = HELD, True
                reader.tags[reader.next_tag] = message
                reader.next_tag += 1
                given.append(message)
            assert grant.size_bytes == sum(by_number[number].size for number in numbers(grant))
        # The order among consumers is by number, message by message: what is given is the front of what was ready.
        front = sorted([*given, *self.ready()], key=lambda message: message.number)[: len(given)]
        assert sorted(given, key=lambda message: message.number) == front
        return len(given)

    @rule(data=st.data())
    def mark_moves(self, data: st.DataObject) -> None:
        self.queue.mark = max(self.queue.mark, data.draw(st.integers(0, self.queue.last + 3)))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def change_of_mind(self, data: st.DataObject) -> None:
        state = data.draw(st.sampled_from(self.readers)).state
        state.willing = not state.willing

    # -- what is settled

    def draw_tags(self, data: st.DataObject) -> tuple[Reader, int, int]:
        reader = data.draw(st.sampled_from(self.readers))
        first = data.draw(st.integers(0, reader.next_tag + 1))
        return reader, first, data.draw(st.integers(max(0, first - 1), first + 6))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), what=st.sampled_from(["acknowledged", "rejected", "counted", "uncounted"]))
    def settle(self, data: st.DataObject, what: str) -> None:
        reader, first, last = self.draw_tags(data)
        tags = range(first, last + 1)
        legal = len(tags) > 0 and all(tag in reader.tags for tag in tags)
        expected = [reader.tags[tag].number for tag in tags] if legal else []
        try:
            if what in self.out:
                done = settle(reader.state, first, last, rejected=what == "rejected")
            else:
                done = give_back(reader.state, first, last, counted=what == "counted")
        except RemoteProtocolError:
            assert not legal
            return
        assert legal and done == expected
        for tag in tags:
            self.end_hold(reader.tags.pop(tag), what)

    def end_hold(self, message: Message, what: str) -> None:
        message.state = GONE if what in self.out else READY
        message.delivered += what == "counted"
        self.out["redelivered"] += what == "counted"
        if what in self.out:
            self.out[what] += 1

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), counted=st.booleans())
    def close(self, data: st.DataObject, counted: bool) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        found: dict[int, int] = {}
        for tag, span in reader.state.unsettled():
            found.update(zip(range(tag, tag + span.rows), numbers(span), strict=True))
            self.queue.give_back(span, counted=counted)
        assert found == {tag: message.number for tag, message in reader.tags.items()}
        self.queue.remove_consumer(reader.state)
        self.readers.remove(reader)
        for message in reader.tags.values():
            self.end_hold(message, "counted" if counted else "uncounted")

    @rule(budget=st.sampled_from([1, 1_000]))
    def purge(self, budget: int) -> None:
        ready = self.ready()
        spans, ended = self.queue.purge(budget)
        removed = [number for span in spans for number in numbers(span)]
        assert removed == [message.number for message in ready][: len(removed)]
        assert len(removed) == len(ready) or len(removed) >= budget
        assert len(ended) == len(spans)
        for message in ready[: len(removed)]:
            message.state = GONE
        self.out["purged"] += len(removed)

    # -- what holds at all times

    @invariant()
    def agrees(self) -> None:
        queue: Any = getattr(self, "queue", None)
        if queue is None:
            return
        queue.check()
        states = [message.state for message in self.messages]
        assert (queue.ready, queue.held, queue.added) == (states.count(READY), states.count(HELD), len(states))
        assert self.out == {name: getattr(queue, name) for name in self.out}
        for reader in self.readers:
            assert (reader.state.held, reader.state.held_bytes) == (len(reader.tags), reader.bytes())
        rows = {view.first + row: view.deliveries(row) for view in queue.runs() for row in range(len(view.states))}
        for message in self.messages:
            if message.state != GONE:
                assert rows[message.number] == message.delivered
                assert not message.granted or message.number <= queue.granted


TestQueueModel = QueueModel.TestCase
TestQueueModel.settings = settings(max_examples=300, stateful_step_count=40)
