"""The forwarder of a bridge: receives messages, sends them to the target, and settles each one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Self

import attrs

from meshq.abc import WallClock
from meshq.bridge._forwarding_plan import ForwardBatch, plan
from meshq.bridge._settings import BridgeSettings
from meshq.client import (
    BodyStream,
    BridgedMessage,
    Client,
    Consumer,
    Delivery,
    acknowledge,
    forget_window,
    put_back,
    send_bridged,
    stream_bridged,
    window_at,
)
from meshq.errors import AddressFullError, BrokenError, ClosedError, MeshqError, RefusedError, SettingsError

#: Messages that are received before an answer is waited for.
BATCH = 1_000
#: Refusals of several messages together after which it is not looked any more for those among them that are taken.
HALVINGS = 32


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
    _batch: list[Delivery] = attrs.field(factory=list, init=False)
    # The places of those of the batch that are not settled.
    _held: dict[int, None] = attrs.field(factory=dict, init=False)
    # The places of those that the target has refused, and of those that are to be acknowledged.
    _refused: list[int] = attrs.field(factory=list, init=False)
    _done: list[int] = attrs.field(factory=list, init=False)
    # Refusals of several together that may still be looked into.
    _halvings: int = attrs.field(default=HALVINGS, init=False)
    # Messages sent to each address since the last acknowledgement that is stored.
    _under_way: dict[str, int] = attrs.field(factory=dict, init=False)

    async def receive(self) -> None:
        """Receive some messages from the queue.

        Checkpoint: always.  Cancellation: no message is lost.
        """
        self._batch = await self.consumer.receive_many(min(BATCH, self.settings.window))
        self._held = dict.fromkeys(range(len(self._batch)))

    async def send(self) -> bool:
        """Send the received messages and settle them; False if the target has taken none of them.

        Checkpoint: always.
        Cancellation: what was not confirmed goes back, as never delivered.
        Raises:
            MeshqError: the connection is of no more use, or whether something was sent is not known; what was not
                confirmed goes back, as never delivered.
        """
        settings = self.settings
        self._refused.clear()
        self._halvings = HALVINGS
        try:
            found = plan(
                self._batch,
                address=settings.forwarding_address,
                transformer=settings.transformer,
                identify=self.identify,
                now=self.wall.now_ms() / 1000,
            )
            await self._reject(found.rejected)
            await self._give_back_failed(found.failed)
            self.counts.ended += len(found.ended)
            self._done += found.ended
            carried = self.counts.carried
            for part in found.parts:
                await self._send_part(part)
            await self._acknowledge()
            if not self._refused:
                return True
            if self.counts.carried == carried and self._goes_one_way():
                # They stay in their order.
                return False
            # They don't hold up what the target may take, and are not tried all the time.
            self._put_back(self._refused, settings.retry_interval)
            return True
        finally:
            # After an error or a cancellation: without waiting.
            acknowledge(self.consumer, self._let_go(self._done))
            self._put_back(list(self._held), None)

    def _goes_one_way(self) -> bool:
        """Whether all refused messages go to the one address of the queue's messages, so that later ones would be
        refused, too."""
        one = self.settings.forwarding_address is not None
        return one or all(self._batch[place].address == self.address for place in self._refused)

    # -- sending

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
        results: Sequence[MeshqError | None] = [None] * len(piece.places)
        failure: MeshqError | None = None
        try:
            await self._put(piece)
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
            failure, results = error, error.results or [error] * len(piece.places)
        confirmed = [place for place, error in zip(piece.places, results, strict=True) if error is None]
        self.counts.carried += len(confirmed)
        self._done += confirmed
        if failure is None:
            return
        refused = self._refusals(piece, results, failure)
        if len(refused.places) == 1 or isinstance(failure, AddressFullError) or not self._halvings:
            self._hear(refused, failure)
            return
        # One message that is refused for itself has its whole run refused: the others are not to wait for it.
        self._halvings -= 1
        for half in refused.pieces(-(-len(refused.places) // 2)):
            await self._send_piece(half)

    async def _put(self, piece: ForwardBatch) -> None:
        pairs = zip(piece.places, piece.messages, strict=True)
        messages = [BridgedMessage(*pair, self._path_of(place)) for place, pair in pairs]
        if not piece.streams:
            await send_bridged(self.there, piece.address, messages)
            return
        async with self._batch[piece.places[0]].open() as stream:
            await stream_bridged(self.there, piece.address, messages[0], _Chunks(stream))

    def _path_of(self, place: int) -> str:
        return self.path(self._batch[place]) if self.path is not None else ""

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
        found = []
        for place in places:
            del self._held[place]
            found.append(self._batch[place])
        return found

    def _trouble(self, event: str, text: str, why: str) -> None:
        self.counts.last_error = why
        self.warn(event, text, "")
