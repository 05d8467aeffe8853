"""Groups beside a model that is a list of messages."""

from __future__ import annotations

import random

import pytest

from meshq import AddressSettings, limits
from meshq.broker.queue._consumer_state import AnyConsumer, RowSpan
from meshq.broker.queue._grouped_machine import GroupedMessages
from tests.broker.queues import dealt, give_back, join, leave, make_queue, put, settle


class Model:
    """A list of messages; what a group and a consumer may get next is worked out by looking through all of it."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.queue = make_queue()
        self.queue.settings = AddressSettings(default_group_rebalance=dice.random() < 0.3)
        # By number: group, the property k, priority; in the queue and not held.
        self.ready: dict[int, tuple[str | None, int, int]] = {}
        self.held: dict[int, tuple[AnyConsumer, int, tuple[str | None, int, int]]] = {}
        self.delayed: dict[int, tuple[RowSpan, tuple[str | None, int, int]]] = {}
        self.owners: dict[str, AnyConsumer] = {}
        self.made = 0
        self.granted = 0

    def put(self) -> None:
        size, priority = self.dice.choice([1, 1, 4, 12]), self.dice.choice([4, 4, 4, 9])
        groups = [self.dice.choice([None, "a", "b", "c", "d"]) for _ in range(size)]
        keys = [self.dice.randrange(3) for _ in groups]
        view = put(self.queue, groups=groups, values=[{"k": key} for key in keys], priority=priority)
        for row in range(size):
            self.ready[view.first + row] = groups[row], keys[row], priority

    def join(self) -> None:
        if len(self.queue.roster.consumers) < 5:
            self.made += 1
            filter = self.dice.choice([None, None, "k = 1", "k < 2"])
            window, priority = self.dice.choice([1, 2, 5]), self.dice.choice([0, 0, 1])
            join(self.queue, window, number=self.made, filter=filter, priority=priority)
            if self.queue.settings.default_group_rebalance:
                self.owners.clear()

    def wants(self, consumer: AnyConsumer, key: int) -> bool:
        return consumer.filter is None or key == 1 or (consumer.filter.text == "k < 2" and key < 2)

    def dispatch(self) -> None:
        last: dict[int, tuple[int, int]] = {}
        while (
            dispatches := self.queue.dispatch(self.dice.choice([1, 3, limits.STEP_MESSAGES_MAX]))
        ) or self.queue.pending.unfinished:
            self.queue.check()
            for consumer, dispatch in dispatches:
                for index, row in enumerate(range(dispatch.start, dispatch.stop, dispatch.step)):
                    self.check_grant(consumer, dispatch.view.first + row, dispatch.tag + index, last)
        for number, (group, key, _) in self.ready.items():
            self.check_left(number, group, key)

    def check_grant(self, consumer: AnyConsumer, number: int, tag: int, last: dict[int, tuple[int, int]]) -> None:
        group, key, priority = self.ready.pop(number)
        self.granted += group is not None
        assert self.wants(consumer, key)
        # Nothing that it could have had stands before it.
        for other, (name, other_key, other_priority) in self.ready.items():
            if name == group is not None and (-other_priority, other) < (-priority, number):
                assert not self.wants(consumer, other_key)
        if group is not None:
            holders = {holder.number for holder, _, (name, _, _) in self.held.values() if name == group}
            assert holders <= {consumer.number}
            assert self.owners.setdefault(group, consumer) is consumer
        self.held[number] = consumer, tag, (group, key, priority)

    def check_left(self, number: int, group: str | None, key: int) -> None:
        """Nobody could be given this message, as nobody has room, wants it, or may have its group."""
        owner = self.owners.get(group) if group is not None else None
        busy = group is not None and owner is None and any(name == group for _, _, (name, _, _) in self.held.values())
        for consumer in self.queue.roster.consumers:
            if consumer.credit() and self.wants(consumer, key) and not busy:
                assert owner not in (None, consumer), (number, group, consumer.number)

    def finish(self) -> None:
        if not self.held:
            return
        number = self.dice.choice(list(self.held))
        consumer, tag, message = self.held.pop(number)
        if self.dice.random() < 0.7:
            assert settle(consumer, tag, tag) == [number]
        else:
            assert give_back(consumer, tag, tag) == [number]
            self.ready[number] = message
        self.forget(message[0])

    def delay(self) -> None:
        """A message that is held, or ready, waits."""
        if self.held and self.dice.random() < 0.5:
            number = self.dice.choice(list(self.held))
            consumer, tag, message = self.held.pop(number)
            (span,) = consumer.take(tag, tag)
            self.queue.give_back(span, counted=True, waits=True)
        elif self.ready:
            number = self.dice.choice(list(self.ready))
            message = self.ready.pop(number)
            (view,) = [view for view in self.queue.runs() if view.first <= number < view.first + len(view.states)]
            span = RowSpan(view, number - view.first, number - view.first + 1, 1)
            self.queue.delay(span)
        else:
            return
        self.delayed[number] = span, message

    def wake(self) -> None:
        if self.delayed:
            number = self.dice.choice(list(self.delayed))
            span, self.ready[number] = self.delayed.pop(number)
            self.queue.wake(span)

    def forget(self, group: str | None) -> None:
        messages = [*self.ready.values(), *(message for _, _, message in self.held.values())]
        there = {name for name, _, _ in [*messages, *(message for _, message in self.delayed.values())]}
        if group not in there:
            self.owners.pop(group, None)  # type: ignore[arg-type]

    def leave(self) -> None:
        if self.queue.roster.consumers:
            gone = self.dice.choice(self.queue.roster.consumers)
            for number, (consumer, _, message) in list(self.held.items()):
                if consumer is gone:
                    self.ready[number] = message
                    del self.held[number]
            leave(gone)
            self.owners = {name: owner for name, owner in self.owners.items() if owner is not gone}

    def purge(self) -> None:
        groups = {group for group, _, _ in [*self.ready.values(), *(message for _, message in self.delayed.values())]}
        self.queue.purge(10_000)
        self.ready.clear()
        self.delayed.clear()
        for group in groups:
            self.forget(group)


# A few are enough to measure what they reach.
@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=pytest.mark.slow if seed < 8 else pytest.mark.exhaustive) for seed in range(40)],
)
def test_any_history_keeps_groups_together_and_in_order(seed: int) -> None:
    model = Model(random.Random(seed))
    steps = {
        model.put: 4,
        model.finish: 8,
        model.join: 1,
        model.leave: 0.7,
        model.purge: 0.05,
        model.delay: 0.7,
        model.wake: 0.6,
    }
    for step in model.dice.choices(list(steps), list(steps.values()), k=400):
        step()
        model.queue.check()
        model.dispatch()
    assert model.granted > 60
    for consumer in list(model.queue.roster.consumers):
        leave(consumer)
    while model.delayed:
        model.wake()
    join(model.queue, 100_000)
    dealt(model.queue)
    assert model.queue.counts.ready == 0
    settle(model.queue.roster.consumers[0], 1, model.queue.counts.unacked)
    grouped = model.queue.grouped
    assert isinstance(grouped, GroupedMessages) and not grouped.table and model.queue.lists.live_runs == 0
