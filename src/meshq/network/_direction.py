"""A direction of a link between two brokers of a network: network consumers at its source, sends to its target."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import attrs
import trio

from meshq import limits
from meshq.abc import WallClock
from meshq.address import SEPARATOR
from meshq.bridge import BridgeCounts, BridgeSettings, DeliveryIds, Forwarder
from meshq.client import (
    Client,
    Consumer,
    Delivery,
    NetworkQueue,
    kept_queues,
    network_consumer,
    path_beyond,
    reroute,
    topic_id,
)
from meshq.concurrency import Wakeup
from meshq.errors import AddressFullError, MeshqError, NotFoundError
from meshq.network._demand_machine import TOPIC, DemandTable, Destination, Reached, WantedConsumer, is_forwarded
from meshq.network._kept_plan import KeptNames, KeptQueue
from meshq.network._looks_plan import Looks
from meshq.network._settings import NetworkSettings

#: Messages of a topic that wait for a broker which refuses them, at most: as many as an address remembers ids.
WAITING_MAX: Final = limits.DUPLICATE_IDS_DEFAULT
#: Queues of one broker that keep messages for one direction of a link, and are looked through: more than a link has.
KEPT_QUEUES_MAX: Final = 10_000
#: So many of their names are read without a checkpoint: a few milliseconds.
NAMES_AT_A_TIME: Final = 500
#: Of those that nobody wants any more so many are forwarded at a time.
LEAVING_MAX: Final = 100
#: So often the time between two looks doubles while no queue goes, as where the user may not delete them.
VAIN_DOUBLINGS_MAX: Final = 7
#: How often in a row a broker may refuse what waits for it when nobody wants that any more.
LEAVING_REFUSALS_MAX: Final = 3


@attrs.frozen(kw_only=True)
class ForwardingBroker:
    """The broker from which messages go on.

    ``store``: what no other store has; it is a part of the ids by which the other broker knows what is sent again.
    ``topics``: the same for topics; all links of the broker have one, since a message may come by several.
    """

    node_id: str
    name: str
    store: bytes
    topics: bytes = b""


class _Key(NamedTuple):
    """The part of a network consumer that does not change while the consumer is open."""

    target_id: str
    destination: Destination
    filter: str
    priority: int
    number: int
    #: The name of the subscription whose queue keeps the messages; empty: they go with the consumer.
    kept: str = ""

    @property
    def is_topic(self) -> bool:
        return self.destination.routing == TOPIC


class _Forwarding:
    """A network consumer that is open, opening or closing."""

    def __init__(self, wanted: WantedConsumer) -> None:
        #: The consumer as it is wanted, and what its broker has been told of it.
        self.wanted = wanted
        self.told = wanted.routes, wanted.replay
        #: Its ways are being changed.
        self.rerouting = False
        self.consumer: Consumer | None = None
        #: It forwards no more, whether it is wanted again or not: another one takes its place.
        self.ended = False
        #: It is not wanted any more: what waits is forwarded before the network consumer ends.
        self.leaving = False
        #: The highest number in the queue when that was noticed; None: it was not.
        self.last: int | None = None
        #: How often in a row the other broker has refused all of it since.
        self.refusals = 0
        self.stopping = trio.Event()
        #: What may be cancelled without a doubt about what was sent.
        self.receiving = trio.CancelScope()
        #: All of it has been forwarded, or given up: a queue that keeps messages goes, too.
        self.over = False

    @property
    def to_tell(self) -> tuple[tuple[str, ...], str]:
        """The ways, and the filter of messages that go there again: all that its broker is told."""
        return self.wanted.routes, self.wanted.replay

    def stay(self, wanted: WantedConsumer) -> None:
        """Have the network consumer go on."""
        self.wanted, self.leaving, self.last, self.refusals = wanted, False, None, 0

    def leave(self, *, kept: bool) -> None:
        """End the network consumer when the messages that wait now have been forwarded.  ``kept``: messages may wait
        from before it is open."""
        if self.consumer is None and not kept:
            self.stop()
        elif not self.leaving:
            self.leaving = True
            self.receiving.cancel()

    def stop(self) -> None:
        """End the network consumer after the send that is under way."""
        self.stopping.set()
        self.receiving.cancel()

    def is_drained(self, queue: NetworkQueue) -> bool:
        """Whether all that was in the queue of a topic when the network consumer began to leave has gone, and all that
        was on its way there."""
        if self.last is None:
            self.last = queue.last
        return queue.oldest > self.last


class Direction:
    """A direction of a link, until the direction is cancelled.

    ``source``: a client of the broker with the messages; ``target``: of the one to which they go.  ``changed``: called
    when a network consumer has come or gone.
    """

    def __init__(
        self,
        settings: NetworkSettings,
        table: DemandTable,
        *,
        source: Client,
        target: Client,
        wall: WallClock,
        counts: BridgeCounts,
        warn: Callable[[str, str, str], None],
        changed: Callable[[], None],
        names: KeptNames | None,
        claimed: bool,
    ) -> None:
        """``names``: of the queues that keep messages while the link is down; None: nothing is kept.  ``claimed``: the
        source is the other broker, which may name any queue as one of these."""
        self._names = names
        self._claimed = claimed
        self._looks = Looks()
        self.table: DemandTable = table
        self._settings = settings
        self._source = source
        self._target = target
        self._wall = wall
        self._counts = counts
        self._warn = warn
        self._changed = changed
        #: The broker with the messages; None before it is known.
        self.broker: ForwardingBroker | None = None
        # The network consumers that are to be there, and those that are.
        self._wanted: dict[_Key, WantedConsumer] = {}
        self._running: dict[_Key, _Forwarding] = {}
        # The names of subscriptions whose queues are to keep messages.
        self._keeping: set[str] = set()
        # How often each of them has failed since it was open last.
        self._failures: Counter[_Key] = Counter()
        self._look = Wakeup()

    @property
    def open(self) -> tuple[WantedConsumer, ...]:
        """The network consumers that are there."""
        there = [(key, one) for key, one in self._running.items() if one.consumer is not None]
        return tuple(one.wanted for key, one in there if not one.ended or key not in self._wanted)

    def compare(self, reached: Reached) -> None:
        """Work the network consumers out anew.  ``reached``: what all links of the source reach."""
        self._wanted = {}
        numbers: Counter[_Key] = Counter()
        names = self._names.at(self.table.target_id) if self._names is not None else None
        for one in self.table.wanted(reached) if self.broker is not None else ():
            alike = _Key(self.table.target_id, one.destination, one.filter, one.priority, 0)
            number = numbers[alike]
            kept = ""
            if one.kept and names is not None:
                kept = names.name(one.destination.address, one.filter, number)
            self._wanted[alike._replace(number=number, kept=kept)] = one
            numbers[alike] += 1
        self._keeping = {key.kept for key in self._wanted if key.kept}
        for key, forwarding in self._running.items():
            if forwarding.ended:
                continue
            if key in self._wanted:
                forwarding.stay(self._wanted[key])
            elif key.kept in self._keeping:
                # Wanted again, by another filter than is known of what was left: the queue stays.
                forwarding.stop()
            elif key.is_topic and self.broker is not None and key.target_id == self.table.target_id:
                # Its queue goes with it, and senders have confirms for what is in there.
                forwarding.leave(kept=bool(key.kept))
            else:
                forwarding.stop()
        if self.table.unserved:
            text = f"{self.table.unserved} more network consumers are wanted than {self._settings.name} may have"
            self._warn("network_consumers_max", text, "")
        if not self.table.target_id or self.broker is None:
            self._looks.begin_anew()
        self._look.wake()

    def _is_wanted(self, key: _Key) -> bool:
        """Whether a network consumer is wanted, or another one on the queue that keeps its messages."""
        return key in self._wanted or key.kept in self._keeping

    async def serve(self) -> None:
        """Have the network consumers that are wanted.

        Checkpoint: always.
        Cancellation: what was received and is not confirmed by the target goes back to its queue.
        """
        async with trio.open_nursery() as nursery:
            while True:
                for key, wanted in self._wanted.items():
                    if key not in self._running or self._running[key].ended:
                        self._running[key] = _Forwarding(wanted)
                        nursery.start_soon(self._forward, key, self._running[key])
                target_id = self.table.target_id if self.broker is not None else ""
                if self._names is not None and target_id and target_id != self._looks.of and not self._looks.going_on:
                    self._looks.of, self._looks.going_on = target_id, True
                    nursery.start_soon(self._tidy, nursery, self._names.at(target_id), target_id)
                for forwarding in self._running.values():
                    consumer, stale = forwarding.consumer, forwarding.told != forwarding.to_tell
                    if consumer is not None and stale and not forwarding.rerouting:
                        forwarding.rerouting = True
                        nursery.start_soon(self._reroute, forwarding, consumer)
                await self._look.wait()

    async def _tidy(self, nursery: trio.Nursery, names: KeptNames, target_id: str) -> None:
        """Look for messages kept for demand that is gone, have them forwarded, and their queues deleted.

        A look reads as much as is said, and looks that follow each other wait: what there is more comes with the next.
        """
        try:
            if self._looks.number:
                longer = 2 ** min(max(0, self._looks.vain - 1), VAIN_DOUBLINGS_MAX)
                await trio.sleep(self._settings.retry_after(self._looks.number) * longer)
            self._looks.number += 1
            self._looks.vain += 1
            queues, more = await kept_queues(self._source, names.node_id, names.beginning, most=KEPT_QUEUES_MAX)
            mine, more_earlier = await self._earlier(names, target_id)
            more_left = await self._tell_left(names, mine)
            more = more or more_earlier
            if more or more_left:
                text = f"more than {KEPT_QUEUES_MAX:,} queues keep messages for {self._settings.name}"
                rest = "others are looked at when some of these are gone" if more else "some may be without a link"
                self._counts.last_error = f"{text}: {rest}"
                self._warn("network_queues_max", self._counts.last_error, "")
            mine = [one for one in mine if self._passes(one)]
            for at in range(0, len(queues), NAMES_AT_A_TIME):
                mine += filter(self._passes, names.among(queues[at : at + NAMES_AT_A_TIME]))
                await trio.lowlevel.checkpoint()
            if self._looks.of == target_id:
                self._leave(nursery, mine, target_id, more=more)
        except MeshqError as error:
            self._counts.last_error = str(error)
            self._looks.of = "" if self._looks.of == target_id else self._looks.of
        finally:
            self._looks.going_on = False
            self._look.wake()

    async def _earlier(self, names: KeptNames, target_id: str) -> tuple[list[KeptQueue], bool]:
        """Return the kept queues of this target whose names an earlier version has made, and whether there are more.

        Whose they are their ways say: the URL may lead to another broker than it did then.
        """
        found: list[KeptQueue] = []
        if not (beginning := names.beginning_earlier):
            return found, False
        most = KEPT_QUEUES_MAX
        queues, more = await kept_queues(self._source, names.node_id, beginning, most=most, target_id=target_id)
        for at in range(0, len(queues), NAMES_AT_A_TIME):
            found += names.earlier(queues[at : at + NAMES_AT_A_TIME])
            await trio.lowlevel.checkpoint()
        return found, more

    async def _tell_left(self, names: KeptNames, mine: Sequence[KeptQueue]) -> bool:
        """Warn of kept queues without a link; return whether there are more than were looked at."""
        if not (beginning := names.beginning_anywhere):
            return False
        advice = "give it back the URL that it had, or move the messages away and delete the queue"
        queues, more = await kept_queues(self._source, names.node_id, beginning, most=KEPT_QUEUES_MAX)
        taken = frozenset(mine)
        for at in range(0, len(queues), NAMES_AT_A_TIME):
            for one in names.left_behind(queues[at : at + NAMES_AT_A_TIME], taken):
                queue = f"{one.address}{SEPARATOR}{one.name}"
                text = f"{queue!r} keeps messages, and more and more, for another broker than {self._settings.name} has"
                self._warn("network_queue_left", f"{text}: {advice}", one.name)
            await trio.lowlevel.checkpoint()
        return more

    def _passes(self, queue: KeptQueue) -> bool:
        """Whether messages of this queue may be forwarded: by its name alone the target would take them anywhere."""
        included = not self._claimed or self._settings.inclusion.passes(TOPIC, queue.address)
        return included and is_forwarded(queue.address)

    def _leave(self, nursery: trio.Nursery, queues: Sequence[KeptQueue], target_id: str, *, more: bool) -> None:
        """Forward the messages of kept queues without demand."""
        running = {key.kept for key in self._running}
        wanted = {key.kept for key in self._wanted}
        room = LEAVING_MAX - len(running - wanted)
        # There may be thousands of both, and the broker does nothing else meanwhile.
        known = running | wanted
        left = [one for one in queues if one.name not in known]
        self._looks.left_out = more or len(left) > room
        for one in left[: max(0, room)]:
            destination = Destination(TOPIC, one.address)
            key = _Key(target_id, destination, "", 0, one.copy, one.name)
            forwarding = self._running[key] = _Forwarding(WantedConsumer(destination, "", 0, (target_id,), kept=True))
            forwarding.leave(kept=True)
            nursery.start_soon(self._forward, key, forwarding)

    async def _reroute(self, forwarding: _Forwarding, consumer: Consumer) -> None:
        """Tell the broker of an open network consumer which ways its messages go now."""
        to_tell = forwarding.to_tell
        try:
            await reroute(consumer, *to_tell)
            forwarding.told = to_tell
        except MeshqError as error:
            self._note(forwarding.wanted, error)
            with trio.move_on_after(self._settings.retry_interval):
                await forwarding.stopping.wait()
        finally:
            forwarding.rerouting = False
            self._look.wake()

    async def _forward(self, key: _Key, forwarding: _Forwarding) -> None:
        failed = False
        try:
            try:
                await self._carry(key, forwarding)
            finally:
                forwarding.consumer = None
                if forwarding.over and key.kept and not self._is_wanted(key):
                    queue = f"{key.destination.address}{SEPARATOR}{key.kept}"
                    await self._source.delete_queue(queue)
                    self._looks.went(queue)
        except MeshqError as error:
            self._note(forwarding.wanted, error)
            forwarding.consumer, failed = None, True
            self._failures[key] += 1
            with trio.move_on_after(self._settings.retry_after(self._failures[key])):
                await forwarding.stopping.wait()
        finally:
            forwarding.consumer = None
            if self._running.get(key) is forwarding:
                del self._running[key]
            if key not in self._wanted:
                del self._failures[key]
            if key.kept and not self._is_wanted(key) and (failed or self._looks.left_out):
                # Its queue, or another one, is still there: the next look finds it, which had left it out until now.
                self._looks.of = ""
            self._look.wake()
            self._changed()

    def _note(self, wanted: WantedConsumer, error: MeshqError) -> None:
        self._counts.last_error = str(error)
        text = f"{self._settings.name} does not forward {wanted.destination.address!r} now: {error}"
        self._warn("network_forwarding_broken", text, wanted.destination.address)

    async def _carry(self, key: _Key, forwarding: _Forwarding) -> None:
        settings, broker, wanted = self._settings, self.broker, forwarding.wanted
        address = wanted.destination.address
        if broker is None:
            return
        if self._claimed and forwarding.leaving and not await self._is_known(address):
            forwarding.over = True
            text = f"what {broker.name!r} kept for {address!r} was dropped: no such address is here any more"
            self._counts.last_error = text
            self._warn("network_kept_dropped", text, address)
            return
        consumer = network_consumer(
            self._source,
            address,
            topic=key.is_topic,
            kept=key.kept,
            filter=wanted.filter,
            window=settings.prefetch,
            priority=wanted.priority,
            routes=wanted.routes,
            # A copy of a topic is made where the message is forwarded first; what comes from others goes on once.
            hops=1 if key.is_topic and key.number else settings.network_ttl,
            replay=wanted.replay,
        )
        forwarding.told = wanted.routes, wanted.replay
        async with consumer:
            # What several filters accept is one copy: only subscriptions that are alike ask for several.
            identify: Callable[[Delivery], bytes] = partial(topic_id, broker.topics, key.number)
            if not key.is_topic:
                queue = await self._source.queue(consumer.queue)
                if not queue.name == queue.address == address:
                    text = f"{address!r} is here not the queue of its address, but one of {queue.address!r}"
                    raise NotFoundError(text)
                if queue.routing != "anycast":
                    # Which topics may cross says another setting than which queues.
                    raise NotFoundError(f"{address!r} is a topic here, and a queue at the other broker")
                identify = DeliveryIds(broker.store, queue.number)
            forwarder = Forwarder(
                settings=self._bridge_settings(address),
                there=self._target,
                consumer=consumer,
                identify=identify,
                wall=self._wall,
                address=address,
                counts=self._counts,
                warn=self._warn,
                paused=forwarding.stopping.is_set,
                routing=TOPIC if key.is_topic else "",
                path=lambda delivery: path_beyond(delivery, broker.node_id, broker.name, key.target_id),
            )
            forwarding.consumer = consumer
            self._look.wake()
            self._changed()
            async with forwarder:
                await self._pump(key, forwarding, forwarder)
            # What comes from now on is for the one that is opened if it is wanted again, before this one is closed.
            forwarding.ended = key.is_topic
            self._look.wake()

    async def _is_known(self, address: str) -> bool:
        """Whether the target or its cluster has an address."""
        route = await self._target.explain_route(address)
        return route.exists or any(step.kind == "remote" for step in route.steps)

    async def _pump(self, key: _Key, forwarding: _Forwarding, forwarder: Forwarder) -> None:
        """Forward until the network consumer is to end."""
        while not await self._is_over(forwarding, forwarder.consumer):
            forwarding.receiving = trio.CancelScope()
            if forwarding.leaving:
                # What waited may expire meanwhile.
                forwarding.receiving.deadline = trio.current_time() + self._settings.retry_interval
            with forwarding.receiving:
                await forwarder.receive()
            if forwarding.receiving.cancelled_caught:
                continue
            before = forwarder.confirmed
            taken = await forwarder.send()
            if forwarder.confirmed > before:  # What is only sent may still break.
                self._failures[key] = forwarding.refusals = 0
            if not taken:
                forwarding.refusals += 1
                await self._check_waiting(key, forwarding, forwarder.consumer)
                # The target takes nothing of it now.
                with trio.move_on_after(self._settings.retry_interval):
                    await forwarding.stopping.wait()

    async def _is_over(self, forwarding: _Forwarding, consumer: Consumer) -> bool:
        """Whether a network consumer is to end now."""
        if forwarding.stopping.is_set() or not forwarding.leaving:
            # One that takes its place may have told other ways.
            return forwarding.stopping.is_set()
        queue = await reroute(consumer, forwarding.wanted.routes)
        forwarding.over = forwarding.leaving and forwarding.is_drained(queue)
        return forwarding.stopping.is_set() or forwarding.over

    async def _check_waiting(self, key: _Key, forwarding: _Forwarding, consumer: Consumer) -> None:
        """Bound the messages of a topic that wait for a target which refuses them.

        Raises:
            AddressFullError: there is more, and it goes with the queue.
        """
        if key.is_topic:
            queue = await self._source.queue((await reroute(consumer, forwarding.wanted.routes)).name)
            waiting = queue.ready + queue.delivering + queue.delayed
            unwanted = forwarding.leaving and not self._is_wanted(key)
            given_up = unwanted and forwarding.refusals > LEAVING_REFUSALS_MAX
            if waiting > (0 if given_up else math.inf if key.kept else WAITING_MAX):
                forwarding.over = True
                self._counts.rejected += waiting
                why = "since nobody there wants these any more" if given_up else f"more than {WAITING_MAX}"
                raise AddressFullError(f"{waiting} messages that are refused there were dropped, {why}")

    def _bridge_settings(self, address: str) -> BridgeSettings:
        settings = self._settings
        return BridgeSettings(
            name=settings.name,
            queue=address,
            target=settings.uri,
            forwarding_address=address,
            window=settings.prefetch,
            retry_interval=settings.retry_interval,
        )
