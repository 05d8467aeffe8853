"""The network consumers of queues to which messages go back: their filters follow the other consumers."""

from __future__ import annotations

from collections.abc import Callable

from meshq.broker.catalog._network_demand_plan import asked_ways
from meshq.broker.network._replay_plan import ReplayFilter, onward_of, others_of
from meshq.broker.queue._consumer_state import AnyConsumer
from meshq.broker.queue._queue_machine import Queue
from meshq.selector import Filter, parse_filter


class Replay:
    """Keeps the filters of network consumers with replay."""

    __slots__ = ("_node_id", "_schedule_dispatch")

    def __init__(self, node_id: str, schedule_dispatch: Callable[[Queue], None]) -> None:
        self._node_id = node_id
        self._schedule_dispatch = schedule_dispatch

    def follow(self, queue: Queue) -> None:
        """Make the filters anew: a consumer has come, gone or changed."""
        roster = queue.roster
        for consumer, made_of in roster.replaying.items():
            parts = roster.filters_version, consumer.routes, consumer.wanted
            if made_of == parts:
                continue
            filter = self._filter(consumer, queue)
            if filter is not None and filter != consumer.filter:
                roster.refilter(consumer, filter)
                self._schedule_dispatch(queue)
            # For others its filter is the same one.
            roster.replaying[consumer] = roster.filters_version, consumer.routes, consumer.wanted

    def _filter(self, consumer: AnyConsumer, queue: Queue) -> Filter | None:
        onward, wanted = onward_of(consumer.filter), consumer.wanted
        ways = asked_ways(consumer.routes)
        others = None
        if onward is not None and ways and wanted.replay:
            others = others_of(onward, queue.roster.filters_by_text)
        if onward is None or others is None:
            return onward
        return ReplayFilter(
            onward,
            node_id=self._node_id,
            ways=ways,
            hops=wanted.hops,
            wanted=parse_filter(wanted.replay),
            others=others,
        )
