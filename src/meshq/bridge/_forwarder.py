"""The forwarder of a bridge: receives messages, sends them to the target, and settles each one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import attrs

from meshq.abc import WallClock
from meshq.bridge._flights import Flight, Flights
from meshq.bridge._forwarding_plan import DeliveryIds, ForwardBatch, ForwardPlan, message_of, plan, time_left
from meshq.bridge._settings import BridgeSettings
from meshq.client import (
    BodyStream,
    BridgedMessage,
    Client,
    Consumer,
    Delivery,
    DeliverySpan,
    OutgoingRun,
    RunsOnTheWay,
    acknowledge,
    deliveries_of,
    forget_window,
    known_window,
    onward_runs,
    put_back,
    receive_spans,
    send_bridged,
    settle_spans,
    stream_bridged,
    window_at,
)
from meshq.errors import AddressFullError, BrokenError, ClosedError, MeshqError, RefusedError, SettingsError

#: Messages that are received before an answer is waited for.
BATCH = 1_000
#: Refusals of several messages together after which it is not looked any more for those among them that are taken.
HALVINGS = 32
#: Into so many parts a window is divided, each of which is sent by itself: while one is stored here, another one is
#: stored there, a third is on its way, and the last one is being made.
FLIGHTS = 4
#: Messages that are sent together even where the window is small.
FLIGHT_MIN = 64


@attrs.define(eq=False)
class BridgeCounts:
    """The counters of a bridge, as in ``BridgeStatistics``."""

    carried: int = 0
    refused: int = 0
    failed: int = 0
    ended: int = 0
    rejected: int = 0
    last_error: str | None = None


class _UnreadableError(Exception):
    """The local broker can't read a body from its disk."""


class _Chunks:
    """The chunks of a local body; a read error is no refusal by the target."""

    def __init__(self, stream: BodyStream) -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._stream)
        except RefusedError as error:
            raise _UnreadableError(str(error)) from error


@attrs.define(eq=False, kw_only=True)
class Forwarder:
    """A local consumer and a client of the target, until one of them fails."""

    settings: BridgeSettings
    there: Client
    consumer: Consumer
    #: Makes the bridge's id of a message; None: there is to be none.
    identify: Callable[[Delivery], bytes] | None
    wall: WallClock
    #: The address of the queue.
    address: str
    counts: BridgeCounts
    #: Event, text and cause.
    warn: Callable[[str, str, str], None]
    #: Whether no more is to be sent.
    paused: Callable[[], bool]
    #: Returns the encoded path of a delivery that goes on from here; None: messages go without one.
    path: Callable[[Delivery], str] | None = None
    #: The routing type that the address at the target is to have; empty: whichever.
    routing: str = ""
    #: Messages that the target has confirmed to this forwarder.
    confirmed: int = attrs.field(default=0, init=False)
    # What was received together and is not sent.
    _spans: list[DeliverySpan] = attrs.field(factory=list, init=False)
    # What was sent and is not waited for.
    _flights: Flights = attrs.field(init=False)
    # The deliveries that are sent and waited for and are not settled, by their places.
    _held: dict[int, Delivery] = attrs.field(factory=dict, init=False)
    # The places of those that the target has refused, and of those that are to be acknowledged.
    _refused: list[int] = attrs.field(factory=list, init=False)
    _done: list[int] = attrs.field(factory=list, init=False)
    # Refusals of several together that may still be looked into.
    _halvings: int = attrs.field(default=HALVINGS, init=False)
    _next_place: int = attrs.field(default=0, init=False)
    # Messages sent to each address, and waited for, since the last acknowledgement that is stored.
    _under_way: dict[str, int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._flights = Flights(self.consumer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until all flights are decided; after an error or a cancellation end without waiting.

        Checkpoint: when something is under way.  Cancellation: what was not confirmed goes back, as never delivered.
        Raises:
            MeshqError: the connection is of no more use, or whether something was sent is not known.
        """
        try:
            if error is None:
                await self._land()
        finally:
            self._confirm(self._flights.give_up())
            self._give_up()

    @property
    def is_sending(self) -> bool:
        """Whether a flight is under way."""
        return bool(self._flights)

    async def receive(self) -> None:
        """Receive some messages from the queue, or wait until the first flight is decided.

        Checkpoint: always.  Cancellation: no message is lost.
        """
        most = min(BATCH, self.settings.window)
        self._spans += await receive_spans(self.consumer, most, self._flights.decided)

    async def send(self) -> bool:
        """Send the received messages, and settle the decided ones; return False if the target has taken none of them.

        Checkpoint: unless messages follow others, and the window has room for them.
        Cancellation: what was not confirmed goes back at the end of the block, as never delivered.
        Raises:
            MeshqError: the connection is of no more use, or whether something was sent is not known.
        """
        confirmed = self.confirmed
        self._refused = []
        self._halvings = HALVINGS
        self._settle()
        while self._spans and not self._refused and not self.paused():
            await self._send_next()
        if self._flights.troubled:
            await self._land()
        if self._refused and self.confirmed == confirmed and self._goes_one_way():
            # They stay in their order.
            self._give_up()
            return False
        # They don't hold up what the target may take, and are not tried all the time.
        self._put_back(self._refused, self.settings.retry_interval)
        self._give_up()
        return True

    def _give_up(self) -> None:
        """Acknowledge confirmed messages, and give unsent and refused ones back, without waiting."""
        done, self._done = self._done, []
        acknowledge(self.consumer, self._let_go(done))
        self._put_back(list(self._held), None)
        spans, self._spans = self._spans, []
        settle_spans(self.consumer, spans, back=True)

    # -- sending, and not waiting for it

    async def _send_next(self) -> None:
        """Send the messages that were received first.

        Messages that go on as they are follow one another.  For all others, and as long as it is not known how many may
        be under way, each answer is waited for.
        """
        address = self._address_of(self._spans[0])
        most = self._most(address)
        if most is not None and self.settings.transformer is None:
            spans, rest = self._together(address, min(most, max(FLIGHT_MIN, most // FLIGHTS)))
            messages = sum(span.rows for span in spans)
            # The target may have been asked anew during the wait.
            if not await self._has_room(address, messages, most) or self._most(address) != most:
                return
            # Only now: the time that a message has left goes with it.
            sending = RunsOnTheWay(self.there, self.consumer)
            runs = self._encode(spans, sending)
            if runs is not None:
                self._spans = rest
                self._flights.begin(Flight(address, spans, messages, sending))
                sending.send(address, runs)
                return
        await self._land()
        if not self._refused and not self.paused():
            spans, self._spans = self._spans, []
            await self._send_and_wait(deliveries_of(spans))

    def _most(self, address: str) -> int | None:
        """Return how much may be under way to an address; None: the target has to be asked."""
        return self.settings.window if self.identify is None else known_window(self.there, address)

    def _address_of(self, span: DeliverySpan) -> str:
        return self.settings.forwarding_address or span.run.header.address

    def _together(self, address: str, most: int) -> tuple[list[DeliverySpan], list[DeliverySpan]]:
        """Return the received messages that are sent together, and the others."""
        together: list[DeliverySpan] = []
        rest = deque(self._spans)
        while rest and most and (not together or self._address_of(rest[0]) == address):
            run, start, rows = rest.popleft()
            if rows > most:
                rest.appendleft(DeliverySpan(run, start + most, rows - most))
                rows = most
            together.append(DeliverySpan(run, start, rows))
            most -= rows
        return together, list(rest)

    def _encode(self, spans: Sequence[DeliverySpan], sending: RunsOnTheWay) -> list[OutgoingRun] | None:
        """Return messages as they go on; None: one of them can't, as the others do."""
        if any(span.run.large is not None for span in spans):
            return None
        now = self.wall.now_ms() / 1000
        try:
            return onward_runs(self.there, sending, spans, partial(self._describe, now), self._ids())
        except MeshqError:
            return None

    def _describe(self, now: float, delivery: Delivery) -> BridgedMessage:
        """Return the message that goes on, without its body and its id."""
        path = self.path(delivery) if self.path is not None else ""
        return BridgedMessage(message_of(delivery, now, large=True), b"", path)

    def _ids(self) -> Callable[[DeliverySpan], list[bytes]] | None:
        """Return the maker of the ids of deliveries; None: there are no ids."""
        identify = self.identify
        if identify is None:
            return None
        if isinstance(identify, DeliveryIds):
            return lambda span: identify.among(span.run.header, span.start, span.rows)
        return lambda span: [identify(delivery) for delivery in deliveries_of([span])]

    async def _has_room(self, address: str, count: int, most: int) -> bool:
        """Wait until so many messages more may be under way to an address, and all before them are sent; False if
        nothing more is to be sent now."""
        flights = self._flights
        while (flights.under_way(address) + count > most or flights.is_queued(address)) and not self._refused:
            if flights.troubled:
                await self._land()
            else:
                await flights.wait(partial(self._may_follow, address, count, most))
                self._settle()
        return not self._refused and not self.paused()

    def _may_follow(self, address: str, count: int, most: int) -> bool:
        return self._flights.under_way(address) + count <= most and not self._flights.is_queued(address)

    def _settle(self) -> None:
        self._confirm(self._flights.settle())

    def _confirm(self, count: int) -> None:
        """Count messages that the target has confirmed."""
        self.confirmed += count
        self.counts.carried += count

    async def _land(self) -> None:
        """Wait for the outcome of all sent messages and acknowledgements; then handle refused messages in order."""
        refused = len(self._refused)
        pieces: list[tuple[ForwardBatch, MeshqError]] = []
        while self._flights or self._flights.is_storing:
            self._settle()
            if self._flights.troubled:
                pieces += self._refusals_of(self._flights.take_troubled())
            elif self._flights or self._flights.is_storing:
                await self._flights.wait()
        for piece, failure in pieces:
            await self._look_into(piece, failure)
        await self._acknowledge()
        for address in dict.fromkeys(self._held[place].address for place in self._refused[refused:]):
            forget_window(self.there, self.settings.forwarding_address or address)

    def _refusals_of(self, flight: Flight) -> list[tuple[ForwardBatch, MeshqError]]:
        """Hold the messages of a flight, and return the refused ones.

        Raises:
            MeshqError: nothing was refused, but something is broken.
        """
        piece = self._admitted(deliveries_of(flight.spans)).parts[0]
        try:
            flight.sending.result()
        except MeshqError as failure:
            return [(self._judge(piece, failure.results or [failure] * flight.messages, failure), failure)]
        return []

    def _admitted(self, deliveries: Sequence[Delivery]) -> ForwardPlan:
        """Hold some deliveries, and return the plan for them."""
        places = range(self._next_place, self._next_place + len(deliveries))
        self._next_place = places.stop
        self._held.update(zip(places, deliveries, strict=True))
        settings = self.settings
        return plan(
            deliveries,
            address=settings.forwarding_address,
            transformer=settings.transformer,
            identify=self.identify,
            now=self.wall.now_ms() / 1000,
            first=places.start,
        )

    # -- sending, and waiting for it

    async def _send_and_wait(self, deliveries: Sequence[Delivery]) -> None:
        found = self._admitted(deliveries)
        await self._reject(found.rejected)
        await self._give_back_failed(found.failed)
        self.counts.ended += len(found.ended)
        self._done += found.ended
        for part in found.parts:
            await self._send_part(part)
        await self._acknowledge()

    def _goes_one_way(self) -> bool:
        """Whether all refused messages go to the one address of the queue's messages, so that later ones would be
        refused, too."""
        one = self.settings.forwarding_address is not None
        return one or all(self._held[place].address == self.address for place in self._refused)

    async def _send_part(self, part: ForwardBatch) -> None:
        most = self.settings.window
        if self.identify is not None:
            try:
                most = await window_at(self.there, part.address, self.settings.window, self.routing)
            except MeshqError as error:
                self._hear(self._refusals(part, [error] * len(part.places), error), error)
                return
            if most < self.settings.window:
                text = (
                    f"the bridge {self.settings.name} has at most {most} messages under way and not "
                    f"window={self.settings.window}: {part.address!r} at its target remembers no more duplicate ids"
                )
                self.warn("bridge_window", text, part.address)
        refused = len(self._refused)
        for piece in part.pieces(most):
            if self.paused():
                break
            if self._under_way.get(part.address, 0) + len(piece.places) > most:
                await self._acknowledge()
            self._under_way[part.address] = self._under_way.get(part.address, 0) + len(piece.places)
            await self._send_piece(piece)
        if len(self._refused) > refused:
            # How much is remembered is asked anew, but not before all of the part was sent under the number known now:
            # what is sent under none the target does not judge.
            forget_window(self.there, part.address)

    async def _send_piece(self, piece: ForwardBatch) -> None:
        piece = self._with_time_left(piece)
        try:
            await self._put(piece)
            self._confirm_places(piece.places)
        except SettingsError as error:
            # One message can't be sent by any client; none was sent.
            if len(piece.places) > 1:
                for one in piece.pieces(1):
                    await self._send_piece(one)
            elif self.settings.transformer is not None:
                await self._give_back_failed({piece.places[0]: f"has made what can't be sent: {error}"})
            else:
                await self._reject({piece.places[0]: f"a message that can't be sent: {error}"})
            return
        except _UnreadableError as error:
            await self._reject({piece.places[0]: f"a message that can't be read: {error}"})
            return
        except MeshqError as error:
            await self._look_into(self._judge(piece, error.results or [error] * len(piece.places), error), error)

    def _judge(self, piece: ForwardBatch, results: Sequence[MeshqError | None], failure: MeshqError) -> ForwardBatch:
        """Count the confirmed messages of a piece, and return the refused ones.

        Raises:
            MeshqError: nothing was refused, but something is broken.
        """
        self._confirm_places([place for place, error in zip(piece.places, results, strict=True) if error is None])
        return self._refusals(piece, results, failure)

    def _confirm_places(self, places: Sequence[int]) -> None:
        self._confirm(len(places))
        self._done += places

    async def _look_into(self, refused: ForwardBatch, failure: MeshqError) -> None:
        """Find the messages among those refused together that are refused for themselves."""
        if len(refused.places) == 1 or isinstance(failure, AddressFullError) or not self._halvings:
            self._hear(refused, failure)
            return
        # One message that is refused for itself has its whole run refused: the others are not to wait for it.
        self._halvings -= 1
        for half in refused.pieces(-(-len(refused.places) // 2)):
            await self._send_piece(half)

    def _with_time_left(self, piece: ForwardBatch) -> ForwardBatch:
        """Return a piece with the time that its messages have left now: much may have been waited for since."""
        if self.settings.transformer is not None or all(message.ttl is None for message, _ in piece.messages):
            # What a transformer has made is made once.
            return piece
        now = self.wall.now_ms() / 1000
        left = [time_left(self._held[place].expiration, now) for place in piece.places]
        pairs = zip(piece.messages, left, strict=True)
        return piece._replace(messages=[(attrs.evolve(message, ttl=ttl), given) for (message, given), ttl in pairs])

    async def _put(self, piece: ForwardBatch) -> None:
        pairs = zip(piece.places, piece.messages, strict=True)
        messages = [BridgedMessage(*pair, self._path_of(place)) for place, pair in pairs]
        if not piece.streams:
            await send_bridged(self.there, piece.address, messages)
            return
        async with self._held[piece.places[0]].open() as stream:
            await stream_bridged(self.there, piece.address, messages[0], _Chunks(stream))

    def _path_of(self, place: int) -> str:
        return self.path(self._held[place]) if self.path is not None else ""

    def _refusals(self, piece: ForwardBatch, results: Sequence[MeshqError | None], failure: MeshqError) -> ForwardBatch:
        """Return the refused part of a batch.

        Raises:
            MeshqError: it was not refused, but something is broken.
        """
        broken = isinstance(failure, (BrokenError, ClosedError))
        if broken or any(error is not None and error.outcome != "not_done" for error in results):
            raise failure
        indexes = [index for index, error in enumerate(results) if error is not None]
        return piece._replace(
            places=[piece.places[index] for index in indexes], messages=[piece.messages[index] for index in indexes]
        )

    def _hear(self, refused: ForwardBatch, failure: MeshqError) -> None:
        """Note the refused messages."""
        self._refused += refused.places
        self.counts.refused += len(refused.places)
        text = f"the target of the bridge {self.settings.name} refuses what is for {refused.address!r}: {failure}"
        self._trouble("bridge_refused", text, str(failure))

    # -- settling

    async def _acknowledge(self) -> None:
        """Acknowledge the forwarded messages, and wait until that is stored."""
        self._under_way.clear()
        done, self._done = self._done, []
        if done:
            await self.consumer.ack(*self._let_go(done), confirm=True)

    async def _reject(self, rejected: dict[int, str]) -> None:
        for place, why in rejected.items():
            self.counts.rejected += 1
            self._trouble("bridge_rejected", f"the bridge {self.settings.name} rejects {why}", why)
            await self.consumer.reject(*self._let_go([place]))

    async def _give_back_failed(self, failed: dict[int, str]) -> None:
        """Give back messages on which the transformer failed; they are delivered again as the settings of their address
        say."""
        if failed:
            why = next(iter(failed.values()))
            text = f"the bridge {self.settings.name} gives messages back: its transformer {why}"
            self.counts.failed += len(failed)
            self._trouble("bridge_returned", text, f"its transformer {why}")
            await self.consumer.nack(*self._let_go(failed), delay=self.settings.retry_interval)

    def _put_back(self, places: Sequence[int], delay: float | None) -> None:
        put_back(self.consumer, self._let_go(places), delay)

    def _let_go(self, places: Iterable[int]) -> list[Delivery]:
        return [self._held.pop(place) for place in places]

    def _trouble(self, event: str, text: str, why: str) -> None:
        self.counts.last_error = why
        self.warn(event, text, "")
