"""The parts of the simulated clients, and the senders among them.

Every message has a number of its own and is recorded before it is sent.  A sender that loses its client goes on in
its next life with the same messages under the same duplicate ids, as a careful user would; now and then it repeats
what was confirmed long ago, which must change nothing.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Self

import attrs
import trio

from meshq.client import BodySource, Client
from meshq.errors import MeshqError
from meshq.message import Message
from meshq.testing import Swarm
from meshq.testing.history._history import History, body_of

URL: Final = "tcp://broker:5000"
#: The addresses to which is sent, and the queues that get a copy each.
ADDRESSES: Final[dict[str, tuple[str, ...]]] = {
    "shared": ("shared",),
    "solo": ("solo",),
    "news": ("news-a", "news-b"),
    "kept": ("kept",),
}
#: In some seeds the topic's queues have a filter that is true of every message.
TOPIC_FILTER: Final = "AMQPriority >= 0 AND AMQAddress IS NOT NULL"
TOPIC_FILTER_SHARE: Final = 0.5
#: How often each of them is chosen.  ``kept`` is never consumed, so it has to stay small.
WEIGHTS: Final = (10, 10, 6, 1)
#: Queues that somebody consumes, and those of them that never have two consumers at a time.
CONSUMED: Final = ("shared", "solo", "news-a", "news-b")
SOLE: Final = ("solo", "news-a", "news-b")
#: Seconds after which calls, links and sessions are given up: short, so that a minute sees many of them.
SETTINGS: Final[dict[str, Any]] = {
    "insecure": True,
    "initial_connect_attempts": float("inf"),
    "connection_ttl": 4.0,
    "check_period": 1.0,
    "call_timeout": 20.0,
    "call_failover_timeout": 20.0,
    "retry_interval": 0.05,
    "max_retry_interval": 0.5,
}
#: What clients have besides: the large ones of their messages are streamed when they are sent one by one.
CLIENT_SETTINGS: Final[dict[str, Any]] = {**SETTINGS, "min_large_message_size": 8_000}
#: Messages of one batch: mostly few, now and then more than one run can hold.
BATCH_SIZES: Final = (1, 1, 1, 2, 2, 3, 3, 5, 8, 11)
BATCH_LARGE: Final = 300
#: Every so many messages one is large, one is larger than a segment of the journal, and one takes several blocks.
LARGE_EVERY: Final = 41
HUGE_EVERY: Final = 397
STREAMED_EVERY: Final = 797
LARGE_BYTES: Final = 20_000
HUGE_BYTES: Final = 100_000
#: More than a block of a large body.
STREAMED_BYTES: Final = 300_000
PIECE_BYTES: Final = 64_000
#: Batches that a sender remembers, to repeat them.
REMEMBERED: Final = 40

Dial = Callable[[], Client]


def topic_filter(swarm: Swarm) -> str | None:
    """The filter of the topic's queues in a seed."""
    filtered = swarm.rng("topic filter").random() < TOPIC_FILTER_SHARE
    swarm.count("seen.filtered_topic", int(filtered))
    return TOPIC_FILTER if filtered else None


@attrs.define(eq=False)
class Scene:
    """The state that all actors of one run share."""

    history: History
    #: Nothing new is begun any more.
    closing: bool = False
    #: Nobody receives.
    stuck: bool = False
    #: Confirmed sends so far.
    confirmed: int = 0
    _last_uid: int = 0

    def uid(self) -> int:
        """A message number that was never given."""
        self._last_uid += 1
        return self._last_uid


class Actor:
    """A part of a simulated client process, over all its lives.

    ``dial`` makes a client in the present life.  ``expendable``: its client ends with its broker, which is then
    no failure.
    """

    expendable = False
    #: The node of a mesh that it is dialled at: it keeps to one, for that one knows its duplicate ids.
    node = ""
    #: Batches a second, about, and seconds for which it leaves a queue alone that has nothing.
    pace = 1.0
    idle_s = 0.3
    #: It comes to an end by itself once the scene is closing.
    ends = True

    def __init__(self, scene: Scene, name: str, rng: random.Random, dial: Dial) -> None:
        self.scene = scene
        self.history = scene.history
        self.name = name
        self.rng = rng
        self.dial = dial
        #: Clients so far, over all lives.
        self.clients = 0
        #: It has done everything.
        self.ended = False

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do, once the scene is closing."""
        return self.scene.closing

    def died(self) -> None:
        """Its process has died, and begins anew."""

    async def run(self) -> None:
        """A life: one client after the other, until it is finished.

        Checkpoint: always.  Cancellation: ends it.
        Raises: MeshqError: its client failed for good, which only expendable ones may.
        """
        while not self.finished:
            self.clients += 1
            try:
                async with self.dial() as client:
                    await self.use(client)
            except MeshqError as error:
                if not self.expendable:
                    raise
                self.history.note(f"{self.name}: {error!r}")
            await trio.sleep(0.2 * self.rng.random())
        self.ended = True

    async def use(self, client: Client) -> None:
        """Act with one client, until the client or the actor ends.

        Checkpoint: always.  Cancellation: ends it.
        Raises: MeshqError: the client failed for good.
        """
        raise NotImplementedError


@attrs.frozen
class Batch:
    """Messages that are sent together."""

    address: str
    uids: tuple[int, ...]
    with_id: bool
    durable: bool

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that get a copy each."""
        return ADDRESSES[self.address]

    def extras(self, uid: int) -> dict[str, Any]:
        """Return the options of a message."""
        return {}

    def message(self, uid: int) -> Message:
        """Return the message with this number."""
        return Message(
            body(uid),
            duplicate_id=self.duplicate_id(uid),
            durable=self.durable,
            **{"properties": {"uid": uid}, **self.extras(uid)},
        )

    def duplicate_id(self, uid: int) -> str | None:
        """The duplicate id of a message, if it has one."""
        return f"d{uid}" if self.with_id else None


def body(uid: int) -> bytes:
    """The body of a message: always the same for one number."""
    if uid % STREAMED_EVERY == 0:
        return body_of(uid, STREAMED_BYTES)
    if uid % HUGE_EVERY == 0:
        return body_of(uid, HUGE_BYTES)
    return body_of(uid, LARGE_BYTES if uid % LARGE_EVERY == 0 else 16 << (uid % 8))


class Pieces:
    """A body that is made while it is sent, slowly."""

    def __init__(self, whole: bytes, pause_s: float) -> None:
        self._whole = whole
        self._pause_s = pause_s

    def __aiter__(self) -> PieceIterator:
        return PieceIterator(self._whole, self._pause_s)


class PieceIterator:
    """The pieces of a body, one after the other."""

    def __init__(self, whole: bytes, pause_s: float) -> None:
        self._left = whole
        self._pause_s = pause_s

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next piece.

        Checkpoint: always.  Cancellation: it comes with the next call.
        Raises: StopAsyncIteration: that was all.
        """
        await trio.sleep(self._pause_s)
        piece, self._left = self._left[:PIECE_BYTES], self._left[PIECE_BYTES:]
        if not piece:
            raise StopAsyncIteration
        return piece


class Traffic:
    """The messages of a sender: their addresses, their options and their ids."""

    def address(self, rng: random.Random) -> str:
        """The address of the next batch."""
        return rng.choices(tuple(ADDRESSES), WEIGHTS)[0]

    def batch(self, address: str, uids: tuple[int, ...], *, with_id: bool, durable: bool) -> Batch:
        """A batch of new messages."""
        return Batch(address, uids, with_id, durable)

    def known_id(self, batch: Batch, uid: int) -> str | None:
        """The duplicate id of a message by which the history knows it."""
        return batch.duplicate_id(uid)


#: Messages without wishes, to all addresses.
PLAIN: Final = Traffic()


class Sender(Actor):
    """A sender in every way; a send with a duplicate id whose outcome is unknown is repeated."""

    def __init__(self, scene: Scene, name: str, rng: random.Random, dial: Dial, traffic: Traffic = PLAIN) -> None:
        super().__init__(scene, name, rng, dial)
        self._traffic = traffic
        # Batches whose fate is not known yet, oldest first.
        self._again: list[Batch] = []
        self._old: deque[Batch] = deque(maxlen=REMEMBERED)
        self._producers = 0

    @property
    def finished(self) -> bool:
        """Nothing is left to repeat."""
        return self.scene.closing and not self._again

    async def use(self, client: Client) -> None:
        """Send some batches.  Checkpoint: always.  Cancellation: ends it.  Raises: nothing."""
        ways: Sequence[Callable[[Client, Batch], Awaitable[None]]]
        for _ in range(self.rng.randrange(5, 60)):
            if self.finished:
                return
            if self._again:
                await self._many(client, self._again[0])
                self._again.pop(0)
                continue
            batch = self._batch()
            ways = (self._one_by_one, self._many, self._pipelined)
            if batch.with_id:
                self._again.append(batch)
                ways = (*ways, self._at_once)
            await self.rng.choice(ways)(client, batch)
            if batch.with_id and self.rng.random() < 0.8:
                # Otherwise it is sent again for no reason: a duplicate on purpose.
                self._again.pop(0)
            await trio.sleep(self.rng.expovariate(self.pace))

    def _batch(self) -> Batch:
        if self._old and self.rng.random() < 0.1:
            return self.rng.choice(self._old)
        size = BATCH_LARGE if self.rng.random() < 0.01 else self.rng.choice(BATCH_SIZES)
        address = self._traffic.address(self.rng)
        with_id = self.rng.random() < 0.5
        # What is kept to the end is counted in the journal.
        durable = with_id or address == "kept" or self.rng.random() < 0.8
        uids = tuple(self.scene.uid() for _ in range(size))
        batch = self._traffic.batch(address, uids, with_id=with_id, durable=durable)
        if with_id:
            self._old.append(batch)
        return batch

    # -- what is written down

    def _sent(self, batch: Batch, uid: int, stream: str = "") -> int:
        return self.history.sent(
            self.name,
            batch.queues,
            uid,
            producer=f"{self.name}/{self.clients}/{batch.address}{stream}",
            duplicate_id=self._traffic.known_id(batch, uid),
            durable=batch.durable,
            node=self.node,
            delay_s=batch.extras(uid).get("delay", 0.0),
        )

    def _done(self, ops: Sequence[int]) -> None:
        for op in ops:
            self.history.send_ok(op)
        self.scene.confirmed += len(ops)

    def _failed(self, ops: Sequence[int], error: MeshqError, *, about_others: bool = False) -> None:
        """``error.results``, if there are any, are about the last of these; those before them are confirmed."""
        results: Sequence[MeshqError | None] = error.results[-len(ops) :] if ops else ()
        if not results and (about_others or len(ops) > 1):
            # It does not say which of them it is about.
            for op in ops:
                self.history.send_failed(op, "unknown")
            return
        if not results:
            results = [error] * len(ops)
        self._done(ops[: len(ops) - len(results)])
        for op, result in zip(ops[len(ops) - len(results) :], results, strict=True):
            if result is None:
                self._done([op])
            else:
                self.history.send_failed(op, result.outcome)

    # -- the ways of sending

    async def _one_by_one(self, client: Client, batch: Batch) -> None:
        for uid in batch.uids:
            op = self._sent(batch, uid)
            try:
                await client.send(
                    batch.address,
                    self._given(body(uid)),
                    duplicate_id=batch.duplicate_id(uid),
                    durable=batch.durable,
                    **batch.extras(uid),
                )
            except MeshqError as error:
                self._failed([op], error)
            else:
                self._done([op])

    def _given(self, whole: bytes) -> BodySource:
        """A body as it is, or in pieces that can be had again or not."""
        if len(whole) < LARGE_BYTES or self.rng.random() < 0.4:
            return whole
        pieces = Pieces(whole, self.rng.random() * 0.2)
        return pieces if self.rng.random() < 0.5 else aiter(pieces)

    async def _many(self, client: Client, batch: Batch) -> None:
        ops = [self._sent(batch, uid) for uid in batch.uids]
        try:
            await client.send_many(batch.address, [batch.message(uid) for uid in batch.uids])
        except MeshqError as error:
            self._failed(ops, error)
        else:
            self._done(ops)

    async def _pipelined(self, client: Client, batch: Batch) -> None:
        self._producers += 1
        stream = f"/p{self._producers}"
        taken: list[int] = []
        giving: int | None = None
        try:
            async with client.producer(batch.address, window=self.rng.choice((1, 7, 4000))) as producer:
                for uid in batch.uids:
                    giving = self._sent(batch, uid, stream)
                    await producer.send(
                        body(uid),
                        duplicate_id=batch.duplicate_id(uid),
                        durable=batch.durable,
                        **{"properties": {"uid": uid}, **batch.extras(uid)},
                    )
                    taken.append(giving)
                    giving = None
        except MeshqError as error:
            if giving is not None:
                # A send that raises has not taken its message, and its outcome is about that one.
                self.history.send_failed(giving, "not_done")
            self._failed(taken, error, about_others=giving is not None)
        else:
            self._done(taken)

    async def _at_once(self, client: Client, batch: Batch) -> None:
        """The same messages twice at the same time: the second must not be confirmed before the first is safe."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pipelined, client, batch)
            nursery.start_soon(self._many, client, batch)
