"""One queue with several consumers, some with filters, beside a model that is a list of messages."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from meshq import limits
from meshq.broker.queue._queue_machine import QueueConsumer
from meshq.errors import RemoteProtocolError
from tests.broker.queues import give_back, join, make_queue, numbers, properties, put, settle

READY, UNACKED, GONE = "ready", "held", "gone"
SCAN_MESSAGES_MAX = limits.SCAN_MESSAGES_MAX


@attrs.define
class Message:
    """What the model knows of a message."""

    number: int
    #: Of its body, and with its property.
    body: int
    size: int
    key: int | None
    durable: bool
    state: str = READY
    delivered: int = 0
    granted: bool = False


#: Filters and what they mean: looked up by a property or a header, alone or with more, and asked.
FILTERS: Final[dict[str | None, Callable[[Message], bool]]] = {
    None: lambda message: True,
    "k = 1": lambda message: message.key == 1,
    "k IN (1, 2)": lambda message: message.key in (1, 2),
    "k = 2 AND size > 10": lambda message: message.key == 2 and message.body > 10,
    "k > 1": lambda message: message.key is not None and message.key > 1,
    "size = 7 OR size = 8": lambda message: message.body in (7, 8),
    "k IS NULL": lambda message: message.key is None,
    "k = 9": lambda message: False,
}


@attrs.define
class Reader:
    """What the model knows of a consumer: what each tag is, until it is settled."""

    state: QueueConsumer
    filter: str | None
    tags: dict[int, Message] = attrs.field(factory=dict)
    next_tag: int = 1

    def bytes(self) -> int:
        return sum(message.size for message in self.tags.values())

    def wants(self, message: Message) -> bool:
        return FILTERS[self.filter](message)

    def has_room_for(self, size: int) -> bool:
        if not self.state.willing or len(self.tags) >= self.state.window:
            return False
        return not self.tags or self.bytes() + size <= self.state.window_bytes


#: Window, its bytes, and a filter; the bodies' sizes and properties of a run, and whether it is durable.
READER: Final = (st.integers(1, 12), st.sampled_from([1, 20, 60, 1_000, 1_000]), st.sampled_from(list(FILTERS)))
RUN: Final = (
    st.lists(st.tuples(st.integers(1, 30), st.sampled_from([None, 0, 1, 1, 2])), min_size=1, max_size=12),
    st.booleans(),
)


class QueueModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []
        self.readers: list[Reader] = []
        self.readers_made = 0
        self.out = dict.fromkeys(("acknowledged", "rejected", "purged", "redelivered"), 0)

    @initialize(
        mark=st.sampled_from([0, 5, 1_000_000, 1_000_000]),
        scan=st.sampled_from([1, 20, SCAN_MESSAGES_MAX]),
        readers=st.lists(st.tuples(*READER), max_size=3),
        runs=st.lists(st.tuples(*RUN), max_size=3),
    )
    def begin(
        self,
        mark: int,
        scan: int,
        readers: list[tuple[int, int, str | None]],
        runs: list[tuple[list[tuple[int, int | None]], bool]],
    ) -> None:
        self.queue = make_queue(mark=mark)
        limits.SCAN_MESSAGES_MAX = scan  # type: ignore[misc]
        for reader in readers:
            self.add_reader(*reader)
        for run in runs:
            self.add_run(*run)

    def teardown(self) -> None:
        limits.SCAN_MESSAGES_MAX = SCAN_MESSAGES_MAX  # type: ignore[misc]

    def ready(self) -> list[Message]:
        return [message for message in self.messages if message.state == READY]

    # -- what comes in

    @rule(run=st.tuples(*RUN))
    def place(self, run: tuple[list[tuple[int, int | None]], bool]) -> None:
        self.add_run(*run)

    def add_run(self, content: list[tuple[int, int | None]], durable: bool) -> None:
        values = [None if key is None else {"k": key} for _, key in content]
        view = put(self.queue, sizes=[size for size, _ in content], durable=durable, values=values)
        self.messages += [
            Message(view.first + row, size, size + len(properties(values[row]).properties), key, durable)
            for row, (size, key) in enumerate(content)
        ]

    @rule(hole=st.integers(1, 5))
    def leave_a_hole(self, hole: int) -> None:
        self.queue.number_rows(hole)

    @precondition(lambda self: len(self.readers) < 4)
    @rule(reader=st.tuples(*READER))
    def open(self, reader: tuple[int, int, str | None]) -> None:
        self.add_reader(*reader)

    def add_reader(self, window: int, window_bytes: int, filter: str | None) -> None:
        self.readers_made += 1
        state = join(self.queue, window, window_bytes, number=self.readers_made, filter=filter)
        self.readers.append(Reader(state, filter))

    # -- what goes out

    @rule(budget=st.sampled_from([1, 5, 1_000]))
    def step(self, budget: int) -> None:
        self.take_grants(budget)

    @rule()
    def dispatch_all(self) -> None:
        while self.take_grants(1_000) or self.queue.pending.unfinished:
            pass
        for filter in {reader.filter: None for reader in self.readers}:
            filter_group = [reader for reader in self.readers if reader.filter == filter]
            wanted = [message for message in self.ready() if filter_group[0].wants(message)]
            if wanted and any(reader.has_room_for(wanted[0].size) for reader in filter_group):
                # What somebody wants, and has room for, waits only for the mark, and that has been asked for.
                first = wanted[0]
                assert first.durable and not first.granted and first.number > self.queue.lists.high_watermark
                assert self.queue.lists.all[0].wanted_watermark >= first.number

    def take_grants(self, budget: int) -> int:
        dispatches = self.queue.dispatch(budget)
        given: dict[str | None, list[Message]] = {}
        by_number = {message.number: message for message in self.messages}
        for consumer, dispatch in dispatches:
            (reader,) = [reader for reader in self.readers if reader.state is consumer]
            assert dispatch.tag == reader.next_tag
            for number in numbers(dispatch):
                message = by_number[number]
                assert message.state == READY and reader.has_room_for(message.size) and reader.wants(message)
                assert message.granted or not message.durable or number <= self.queue.lists.high_watermark
                message.state, message.granted = UNACKED, True
                reader.tags[reader.next_tag] = message
                reader.next_tag += 1
                given.setdefault(reader.filter, []).append(message)
            assert dispatch.size_bytes == sum(by_number[number].size for number in numbers(dispatch))
        # The order among consumers with one filter, or none, is by number, message by message: what they are given is
        # the front of what was ready for them.
        for filter, messages in given.items():
            left = [message for message in self.ready() if FILTERS[filter](message)]
            front = sorted([*messages, *left], key=lambda message: message.number)[: len(messages)]
            assert sorted(messages, key=lambda message: message.number) == front
        return sum(map(len, given.values()))

    @rule(data=st.data())
    def mark_moves(self, data: st.DataObject) -> None:
        self.move_mark(data.draw(st.integers(0, self.queue.last + 3)))

    def move_mark(self, mark: int) -> None:
        self.queue.lists.high_watermark = max(self.queue.lists.high_watermark, mark)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def change_of_mind(self, data: st.DataObject) -> None:
        state = data.draw(st.sampled_from(self.readers)).state
        state.set_willing(not state.willing)

    # -- what is settled

    def draw_tags(self, data: st.DataObject) -> tuple[Reader, int, int]:
        reader = data.draw(st.sampled_from(self.readers))
        held = list(reader.tags)
        # Mostly something that it holds, from the oldest on.
        first = data.draw(st.sampled_from([*held[:3], *held[:3]]) if held else st.integers(0, reader.next_tag + 1))
        return reader, first, data.draw(st.integers(max(0, first - 1), first + 6))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), what=st.sampled_from(["acknowledged", "rejected", "counted", "uncounted"]))
    def settle(self, data: st.DataObject, what: str) -> None:
        self.settle_tags(*self.draw_tags(data), what)

    def settle_tags(self, reader: Reader, first: int, last: int, what: str) -> None:
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
        self.close_reader(data.draw(st.sampled_from(self.readers)), counted=counted)

    def close_reader(self, reader: Reader, *, counted: bool) -> None:
        found: dict[int, int] = {}
        for tag, span in reader.state.unsettled():
            found.update(zip(range(tag, tag + span.rows), numbers(span), strict=True))
            self.queue.give_back(span, counted=counted)
        assert found == {tag: message.number for tag, message in reader.tags.items()}
        self.queue.remove_consumer(reader.state)
        self.readers.remove(reader)
        for message in reader.tags.values():
            self.end_hold(message, "counted" if counted else "uncounted")

    @precondition(lambda self: len(self.messages) % 4 == 0)
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
        counts = queue.counts
        assert (counts.ready, counts.unacked, counts.added) == (states.count(READY), states.count(UNACKED), len(states))
        out = {**counts.removed, "acknowledged": counts.acknowledged, "redelivered": counts.redelivered}
        assert self.out == {name: out[name] for name in self.out}
        for reader in self.readers:
            assert (reader.state.unacked, reader.state.unacked_bytes) == (len(reader.tags), reader.bytes())
        rows = {view.first + row: view.deliveries(row) for view in queue.runs() for row in range(len(view.states))}
        for message in self.messages:
            if message.state != GONE:
                assert rows[message.number] == message.delivered
                assert not message.granted or message.number <= queue.delivered_up_to[4]


class Walk:
    """Steps by dice: they come to crowded queues more often than Hypothesis, which looks for what is small."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.model = QueueModel()

    def run(self) -> Counter[str]:
        dice, model = self.dice, self.model
        model.begin(dice.choice([0, 5, 10**6]), dice.choice([1, 20, SCAN_MESSAGES_MAX]), [], [])  # type: ignore[call-arg]
        taken: Counter[str] = Counter()
        steps = {
            self.place: 4, self.open: 1.5, self.dispatch: 4, self.step: 1, self.settle: 5, self.close: 0.7,
            self.flip: 0.7, self.mark: 1, self.purge: 0.15,
        }  # fmt: skip
        try:
            for step in dice.choices(list(steps), list(steps.values()), k=60):
                step()
                model.agrees()
                taken["filtered"] += any(reader.filter and reader.tags for reader in model.readers)
        finally:
            model.teardown()
        return taken + Counter(model.out)

    def place(self) -> None:
        size = self.dice.choice([1, 3, 12])
        content = [(self.dice.randint(1, 30), self.dice.choice([None, 0, 1, 1, 2])) for _ in range(size)]
        self.model.add_run(content, self.dice.random() < 0.5)

    def open(self) -> None:
        if len(self.model.readers) < 5:
            window, window_bytes = self.dice.choice([1, 3, 12]), self.dice.choice([1, 60, 1_000])
            self.model.add_reader(window, window_bytes, self.dice.choice(list(FILTERS)))

    def dispatch(self) -> None:
        self.model.dispatch_all()

    def step(self) -> None:
        self.model.take_grants(self.dice.choice([1, 5]))

    def settle(self) -> None:
        holders = [reader for reader in self.model.readers if reader.tags]
        if holders:
            reader = self.dice.choice(holders)
            first = self.dice.choice(list(reader.tags))
            last = first + self.dice.choice([0, 0, 1, 4])
            what = self.dice.choice(["acknowledged", "acknowledged", "rejected", "counted", "uncounted"])
            self.model.settle_tags(reader, first, last, what)

    def close(self) -> None:
        if self.model.readers:
            self.model.close_reader(self.dice.choice(self.model.readers), counted=self.dice.random() < 0.5)

    def flip(self) -> None:
        if self.model.readers:
            state = self.dice.choice(self.model.readers).state
            state.set_willing(not state.willing)

    def mark(self) -> None:
        self.model.move_mark(self.dice.randint(0, self.model.queue.last + 3))

    def purge(self) -> None:
        self.model.purge(self.dice.choice([1, 1_000]))  # type: ignore[call-arg]


@pytest.mark.slow
def test_a_queue_agrees_with_the_model_on_random_walks() -> None:
    seen: Counter[str] = Counter()
    for seed in range(300):
        seen += Walk(seed).run()
    # The walks come where it matters.
    assert min(seen[name] for name in ("filtered", "acknowledged", "rejected", "redelivered", "purged")) > 200


TestQueueModel = QueueModel.TestCase
TestQueueModel.pytestmark = [pytest.mark.slow]
TestQueueModel.settings = settings(max_examples=120, stateful_step_count=40)
