"""The consumers of a session: opened, settled, dispatched to and ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from meshq import limits
from meshq.address import MANAGEMENT, NETWORK_KEPT
from meshq.broker.access._access import permit
from meshq.broker.catalog._definitions import Definitions
from meshq.broker.catalog._network_demand_plan import (
    ROUTES_SEPARATOR,
    are_routes,
    forward_filter,
    next_broker,
    topic_filter,
)
from meshq.broker.core._pending_work import PendingWork
from meshq.broker.events._event_bus import EventBus
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.network._replay import Replay
from meshq.broker.network._replay_plan import onward_of
from meshq.broker.queue._consumer_state import AnyConsumer, Dispatch, WantedBehind
from meshq.broker.queue._queue_machine import Queue, QueueConsumer
from meshq.broker.queue._unacked_memory import UnackedMemory
from meshq.broker.replay._range_browser import RangeBrowser
from meshq.broker.session._deliver_frames import delivery
from meshq.broker.session._outgoing_bound import OutgoingBound
from meshq.broker.session._principal import Principal
from meshq.broker.session._session_calls import SessionCalls
from meshq.broker.session._session_channels import SessionChannels
from meshq.broker.session._session_stream import SessionStream
from meshq.broker.session._session_transactions import SessionTransactions
from meshq.broker.settlement._acknowledger import Acknowledger
from meshq.broker.settlement._redelivery import Redelivery
from meshq.errors import MeshqError, UsageError
from meshq.notifications import ConsumerClosed, ConsumerCreated, Notification
from meshq.selector import parse_filter
from meshq.wire import (
    BY_NAME,
    FLAG_RETURN,
    FLAG_TRANSACTED,
    FLAG_UNCOUNTED,
    Consume,
    ConsumerLost,
    Frame,
    FrameType,
    decode_ranges,
    header_of,
    refusal_of,
    violation,
)

#: The name of the call that changes the ways of a network consumer.
NETWORK_ROUTES: Final = "network_routes"


class SessionConsumers:
    """The consumers of one session.  Dispatches stop while the session has no link, or too much is on its way."""

    def __init__(
        self,
        principal: Principal,
        stream: SessionStream,
        *,
        definitions: Definitions,
        acknowledger: Acknowledger,
        redelivery: Redelivery,
        release_queue: ReleaseQueue,
        unacked_memory: UnackedMemory[Queue],
        pending: PendingWork,
        event_bus: EventBus,
        find_queue: Callable[[Consume], Queue],
        calls: SessionCalls,
        channels: SessionChannels,
        transactions: SessionTransactions,
        outgoing_bound: OutgoingBound,
        replay: Replay,
        schedule_delivery: Callable[[], None],
    ) -> None:
        self._acknowledger = acknowledger
        self._redelivery = redelivery
        self._release_queue = release_queue
        self._unacked_memory = unacked_memory
        self._pending = pending
        self._demand = definitions.router.demand
        self._definitions = definitions
        self._event_bus = event_bus
        self._find_queue = find_queue
        #: The client or peer that the consumers belong to.
        self.principal: Principal = principal
        self._stream = stream
        self._calls = calls
        self._channels = channels
        self._transactions = transactions
        self._outgoing_bound = outgoing_bound
        self._replay = replay
        self._schedule_delivery = schedule_delivery
        # Channels whose consumers were lost, the oldest first.  What the client had sent before it heard of that may
        # come late, by way of a resume even after it has heard.
        self._lost: dict[int, None] = {}
        self._willing = True

    def find(self, frame: Frame) -> QueueConsumer | None:
        """The consumer that a frame is about; None if it was lost, which the client may not have heard yet.

        Raises:
            RemoteProtocolError: the channel has never had a consumer.
        """
        consumer = self._channels.consumers.get(frame.channel)
        if consumer is None and frame.channel not in self._lost:
            raise violation("bad_channel", f"there is no consumer on channel {frame.channel}")
        return consumer

    def was_lost(self, channel: int) -> bool:
        """Whether the channel had a consumer that was lost."""
        return channel in self._lost

    def settle(self, frame: Frame) -> None:
        """Acknowledge, return or reject the messages of a SETTLE.

        Raises:
            RemoteProtocolError: the client broke the protocol; the session must be ended.
        """
        if frame.first:
            self._calls.begin(frame)
        consumer = self.find(frame)
        if consumer is None:
            entry = BY_NAME["stale_delivery"]
            self._calls.answer(frame.first, {}, code=entry.number, text=entry.sentence)
            return
        ranges = decode_ranges(frame.table)
        if consumer.browser is not None:
            consumer.browser.settled(ranges)
        elif not frame.flags:
            self._acknowledger.settle(consumer, ranges)
        elif frame.flags & FLAG_TRANSACTED:
            self._transactions.settle(consumer, ranges, frame.stamp)
        elif frame.flags & FLAG_RETURN:
            delay_ms = frame.stamp - 1 if frame.stamp else None
            self._redelivery.give_back(
                consumer, ranges, delay_ms, counted=not frame.flags & FLAG_UNCOUNTED and not consumer.routes
            )
        else:
            self._redelivery.reject(consumer, ranges)
        self._pending.schedule_dispatch(consumer.queue)
        if frame.first:
            self._calls.answer_when_durable(frame.first, {})

    def consume(self, frame: Frame) -> None:
        """Open a consumer or a browse.

        Raises:
            RemoteProtocolError: the client broke the protocol; the session must be ended.
        """
        header = header_of(frame, Consume)
        self._calls.begin(frame)
        self._channels.open(frame)
        if not header.window or not header.window_bytes or header.rank >= limits.CONSUMER_PRIORITIES:
            raise violation("bad_header", "a consumer's window is empty, or its priority is none")
        kept = header.subscription == "shared" and header.durable and header.name.startswith(NETWORK_KEPT)
        lasting = header.subscription not in ("", "own")
        if header.routes and (header.browse or lasting != kept or not are_routes(header.routes) or not header.hops):
            raise violation("bad_header", "a network consumer that browses or stays, or with routes that are none")
        if header.replay and (not header.routes or header.subscription):
            raise violation("bad_header", "messages go back to network consumers of queues alone")
        if (header.lo and not header.browse) or (not header.lo and (header.hi or header.cursor)):
            raise violation("bad_header", "numbers without a browse of them, or without the first one")

        def consume() -> dict[str, Any]:
            self._channels.check_free()
            # The filter of a subscription is its queue's.
            filter = parse_filter(header.filter) if header.filter and not header.subscription else None
            wanted = header
            if header.routes:
                permit(self.principal, "manage", MANAGEMENT)
                if header.subscription and not kept:
                    of_queue = topic_filter(header.routes, header.hops, header.filter)
                    wanted = attrs.evolve(header, filter=of_queue.text)
                elif not kept:
                    filter = forward_filter(header.routes, header.hops, header.filter)
            known = header.queue in self._definitions.router.queues
            queue = self._find_queue(wanted)
            if header.routes and not header.subscription and not known:
                # It is there for demand at other brokers alone, and goes with it.
                queue.auto_delete = True
            priority = header.rank - limits.CONSUMER_PRIORITIES // 2
            if filter is not None and not header.browse:
                queue.check_filter(filter, priority)
            consumer = QueueConsumer(queue, self, frame.channel, header.window, header.window_bytes)
            consumer.willing = self._willing
            consumer.unacked_memory = self._unacked_memory
            if header.browse and header.lo:
                numbers = (header.lo, header.hi)
                owner = (header.cursor, header.fence if header.cursor else 0)
                consumer.browser = RangeBrowser(queue, consumer, filter, self, numbers, owner=owner)
            elif header.browse:
                consumer.browser = queue.browse(consumer, filter, self)
            else:
                consumer.filter, consumer.priority, consumer.exclusive = filter, priority, header.exclusive
                self._add(consumer, header)
            self._channels.consumers[frame.channel] = consumer
            self._emit(ConsumerCreated, consumer, filter=filter.text if filter is not None else "")
            return {"queue": queue.name, "address": queue.address}

        self._calls.answering(frame, consume)
        if header.browse:
            # Behind the answer: it may end at once.
            self._release_queue.when_all_is_durable(
                lambda: self._begin_browse(self._channels.consumers.get(frame.channel))
            )

    def _add(self, consumer: QueueConsumer, header: Consume) -> None:
        """Add a consumer to its queue.

        Raises:
            FilterError: the filter of messages that go back is no condition.
        """
        queue = consumer.queue
        if header.routes:
            consumer.routes = header.routes
            consumer.wanted = WantedBehind(header.filter, header.hops, _checked(header.replay))
        queue.add_consumer(consumer)
        if header.replay:
            queue.roster.replaying[consumer] = None
        self._replay.follow(queue)
        self._pending.schedule_dispatch(queue)
        self._demand.changed(queue)

    def reroute(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Change the ways on which the messages of a network consumer go, and which go there again; the next broker
        stays the same.  The answer names its queue, with the lowest number of a message that is not settled, and the
        highest one.

        Raises:
            FilterError: what goes there again is no condition.
            UsageError: there is no such network consumer, these are no such ways, or the queue has too many filters.
        """
        channel, text, replay = named.get("channel"), named.get("routes"), named.get("replay", "")
        consumer = self._channels.consumers.get(channel) if type(channel) is int else None
        routes = tuple(text.split(ROUTES_SEPARATOR)) if type(text) is str else ()
        if consumer is None or not consumer.routes or not are_routes(routes) or type(replay) is not str:
            raise UsageError(f"{NETWORK_ROUTES} takes the channel of a network consumer, routes and replay")
        if next_broker(routes) != next_broker(consumer.routes):
            raise UsageError("a network consumer goes on sending to the broker for which it was opened")
        queue, filter, replay = consumer.queue, onward_of(consumer.filter), _checked(replay)
        if not queue.spec.subscription:
            filter = forward_filter(routes, consumer.wanted.hops, consumer.wanted.filter)
        if filter is not None and filter != onward_of(consumer.filter):
            queue.check_filter(filter, consumer.priority)
            queue.roster.refilter(consumer, filter)
            self._pending.schedule_dispatch(queue)
        if routes != consumer.routes:
            if queue.spec.routes:
                self._definitions.keep_for_network(queue, attrs.evolve(queue.spec, routes=routes))
            consumer.routes = routes
            self._demand.changed(queue)
        if not queue.spec.subscription:
            consumer.wanted = consumer.wanted._replace(replay=replay)
            if replay:
                queue.roster.replaying[consumer] = None
            self._replay.follow(queue)
        return {"queue": queue.name, "oldest": queue.oldest, "last": queue.last}

    def _begin_browse(self, consumer: QueueConsumer | None) -> None:
        """Begin a browse, unless its consumer is gone."""
        if consumer is not None and consumer.browser is not None:
            consumer.browser.begin()
            self._pending.schedule_dispatch(consumer.queue)

    def leave(self, channel: int, handed: int | None) -> bool:
        """End a consumer whose client has had messages up to the tag ``handed``; return False without a consumer."""
        consumer = self._channels.consumers.pop(channel, None)
        if consumer is not None:
            self._drop(consumer, handed)
        return consumer is not None

    def deliver(self, consumer: AnyConsumer, dispatch: Dispatch) -> None:
        """Send a dispatch to the client."""
        stream = self._stream
        stream.put(delivery(consumer, dispatch))
        self._schedule_delivery()
        link = stream.link
        if link is not None and link.lossless:
            # It has arrived.
            return
        if self._willing and self._outgoing_bound.reached:
            self._set_willing(False)

    def attached(self) -> None:
        """Serve consumers over a new link, unless too much is on its way."""
        self._set_willing(not self._outgoing_bound.reached)

    def detached(self) -> None:
        """Serve no consumer until there is a link again."""
        self._set_willing(False)

    def drained(self) -> None:
        """Serve consumers again if few enough frames are on their way."""
        if not self._willing and self._outgoing_bound.left:
            self._set_willing(self._stream.link is not None)

    def _set_willing(self, willing: bool) -> None:
        self._willing = willing
        for consumer in self._channels.consumers.values():
            consumer.set_willing(willing)
            if willing:
                self._pending.schedule_dispatch(consumer.queue)

    def lose_queue(self, name: str, error: MeshqError) -> None:
        """End the consumers of a deleted queue."""
        for consumer in list(self._channels.consumers.values()):
            if consumer.queue.name == name:
                self.lose_consumer(consumer, refusal_of(error).number, str(error)[:1024])

    def lose_consumer(self, consumer: QueueConsumer, code: int, text: str) -> None:
        """End a consumer and tell its client why; code 0: a browse has shown everything."""
        channel = consumer.number
        del self._channels.consumers[channel]
        self._drop(consumer, None)
        header = ConsumerLost(code=code, text=text)
        self._stream.say_later(Frame(FrameType.CONSUMER_LOST, channel=channel, header=header.encode()))
        self._lost[channel] = None
        if len(self._lost) > limits.CHANNELS_MAX:
            del self._lost[next(iter(self._lost))]

    def end(self) -> None:
        """End all consumers with the session; unacked messages return to their queues."""
        for consumer in self._channels.consumers.values():
            self._drop(consumer, None)
        self._channels.consumers.clear()

    def _drop(self, consumer: QueueConsumer, handed: int | None) -> None:
        if consumer.browser is not None:
            consumer.browser.end()
        else:
            # What a connector had and did not forward was with no application.
            self._redelivery.abandon(consumer, 0 if consumer.routes else handed)
            consumer.queue.remove_consumer(consumer)
            self._replay.follow(consumer.queue)
            self._demand.changed(consumer.queue)
        self._pending.schedule_dispatch(consumer.queue)
        self._emit(ConsumerClosed, consumer)

    def _emit(self, kind: type[Notification], consumer: QueueConsumer, **more: Any) -> None:
        queue = consumer.queue
        self._event_bus.emit(
            kind,
            address=queue.address,
            queue=queue.name,
            session=self.principal.number,
            user=self.principal.owner[1],
            browse=consumer.browser is not None,
            consumers=len(queue.roster.consumers),
            **more,
        )


def _checked(replay: str) -> str:
    """Check the filter of messages that go back; return its text.

    Raises:
        FilterError: it is no condition.
    """
    return parse_filter(replay).text if replay else ""
