"""A queue that a cursor has, and two replayers that contend for the cursor.

Whatever was read once has to be read again in the same order while it is not acknowledged; a number below the high
mark never gets a message later; a number without a message has a hole of a kind that allows it; what is pinned does not
expire; nobody else takes from the queue; and an owner that was replaced acknowledges nothing.
"""

from __future__ import annotations

import random
from typing import Any, Final

import attrs
import trio

from meshq.client import Client, Cursor, ReceivedMessage, SequenceHole
from meshq.errors import CursorHeldError, CursorLostError, MeshqError
from meshq.testing.history._history import History, uid_of
from qa.simulation.workload import Actor, Batch, Dial, Scene, Traffic

#: The queue, the cursor, and the share of seeds in which they are there.
TAPE: Final = "tape"
CURSOR: Final = "audit"
TAPE_SHARE: Final = 0.5
#: How many batches a second are sent, about.
TAPE_PACE: Final = 0.5
#: Seconds of a lease: short, so that owners that were killed are replaced.
LEASE_S: Final = 2.0
#: The groups of those messages that have one.
TAPE_GROUPS: Final = ("g0", "g1", "g2")
#: What the replayers may come upon.
TAPE_SIGHTS: Final = (
    *("cursor_opened", "cursor_acked", "cursor_replayed", "cursor_held", "cursor_lost", "cursor_refused"),
    *("cursor_restarted", "hole_expired", "hole_lost", "hole_reserved"),
)
#: Every so many messages lives for a while only, waits, or is urgent.
SHORT_EVERY: Final = 6


def short_lived(uid: int) -> bool:
    """Whether a message has a time to live."""
    return uid % SHORT_EVERY == 0


class TapeBatch(Batch):
    """A batch of messages with options, which follow from their numbers, so that a repeated send is equal."""

    @property
    def queues(self) -> tuple[str, ...]:
        """The queue that the cursor has."""
        return (TAPE,)

    def extras(self, uid: int) -> dict[str, Any]:
        """Some expire, some wait, some are urgent, some have a group: none of which changes the order."""
        extras: dict[str, Any] = {}
        if short_lived(uid):
            extras["ttl"] = 0.2 + uid // SHORT_EVERY % 5
        if uid % 5 == 1:
            extras["priority"] = uid // 5 % 10
        if uid % 9 == 0:
            extras["delay"] = 0.1 + 0.5 * (uid // 9 % 3)
        if uid % 7 == 0:
            extras["group"] = TAPE_GROUPS[uid // 7 % len(TAPE_GROUPS)]
        return extras


class TapeTraffic(Traffic):
    """Messages to the queue that the cursor has only."""

    def __init__(self, history: History) -> None:
        self._history = history

    def address(self, rng: random.Random) -> str:
        """The queue."""
        return TAPE

    def batch(self, address: str, uids: tuple[int, ...], *, with_id: bool, durable: bool) -> Batch:
        """A batch of new messages."""
        for uid in uids:
            if short_lived(uid):
                self._history.gone(TAPE, uid, "may expire before it is pinned")
        return TapeBatch(address, uids, with_id, durable)


@attrs.define(eq=False)
class Tape:
    """The knowledge of all replayers about the queue and its cursor."""

    history: History
    #: The node of a mesh on which it is; empty: there is one broker.
    node: str = ""
    #: Sequence -> message, whether it is durable, and its delivery in the history.
    seen: dict[int, tuple[int, bool, int]] = attrs.field(factory=dict)
    #: Everything below is acknowledged for sure, or may be; was looked at.
    acked: int = 0
    maybe_acked: int = 0
    looked: int = 0
    #: Sequences of messages that were there after they were pinned.
    pinned: dict[int, None] = attrs.field(factory=dict)
    #: The last owner, and all that there were.
    fence: int = 0
    fences: dict[int, None] = attrs.field(factory=dict)
    epoch: int = 0
    restarts: int = 0
    met: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(TAPE_SIGHTS, 0))

    def wrong(self, what: str) -> None:
        """Record a promise that was broken."""
        self.history.note(f"tape {self.node}: {what}")
        self.history.final.left(f"broken promises of a cursor ({what.partition(':')[0]})", 1)

    def read(self, name: str, message: ReceivedMessage) -> None:
        """Check a message that was read, and record it if it is new."""
        sequence, uid = message.sequence, uid_of(message.body)
        if sequence < self.acked:
            self.wrong(f"an acknowledged message was read: {sequence}, acknowledged up to {self.acked}")
        known = self.seen.get(sequence)
        if known is not None:
            if known[0] != uid:
                self.wrong(f"a sequence has another message: {sequence} had {known[0]}, has {uid}")
            return
        # What has expired may have been on its way, or in the buffer of a reader.
        if sequence < self.looked and not (uid and short_lived(uid)):
            self.wrong(f"a message appeared below what was read: {sequence} below {self.looked}")
        number = self.history.delivered(name, f"{name}/{TAPE}", TAPE, message.body, sequence=sequence, node=self.node)
        self.seen[sequence] = (uid or 0, message.durable, number)

    def check(self, lo: int, hi: int, read: list[int], holes: list[SequenceHole]) -> None:
        """Check that every number of a range was read or has a hole that may be."""
        at = lo
        ranges = sorted([(sequence, sequence + 1) for sequence in read] + [(hole.lo, hole.hi) for hole in holes])
        for start, stop in ranges:
            if start != at:
                self.wrong(f"a range has gaps, or overlaps: {at} to {start} in [{lo}, {hi})")
                return
            at = stop
        if at != hi:
            self.wrong(f"a range has no end: {at} instead of {hi}")
        for hole in holes:
            self.met[f"hole_{hole.kind}"] = self.met.get(f"hole_{hole.kind}", 0) + 1
            for sequence in range(max(hole.lo, lo), min(hole.hi, hi)):
                if sequence in self.seen:
                    self._check_hole(sequence, hole.kind)

    def _check_hole(self, sequence: int, kind: str) -> None:
        uid, durable, _ = self.seen[sequence]
        fine = {
            "expired": short_lived(uid) and sequence not in self.pinned,
            "lost": not durable,
            "acknowledged": sequence < self.maybe_acked,
        }
        if not fine.get(kind, False):
            pinned = sequence in self.pinned
            self.wrong(f"a message is gone as {kind}: {uid} at {sequence}, {pinned=}, {durable=}")


class Replayer(Actor):
    """Reads the queue by the cursor, again and again, and acknowledges; contends with others for the cursor."""

    ends = False

    def __init__(self, scene: Scene, name: str, rng: random.Random, dial: Dial, tape: Tape) -> None:
        super().__init__(scene, name, rng, dial)
        self._tape = tape

    @property
    def finished(self) -> bool:
        """Drain the queue until the node is killed."""
        return False

    async def use(self, client: Client) -> None:
        """Own the cursor for a while.  Checkpoint: always.  Cancellation: ends it.  Raises: nothing."""
        tape = self._tape
        try:
            await client.create_queue(TAPE)
            window = self.rng.choice((1, 7, 1000))
            async with client.cursor(TAPE, CURSOR, lease=LEASE_S, window=window) as cursor:
                self._owned(cursor)
                for _ in range(self.rng.randrange(3, 15)):
                    await self._act(client, cursor)
        except CursorHeldError:
            tape.met["cursor_held"] += 1
        except CursorLostError:
            tape.met["cursor_lost"] += 1
        except MeshqError as error:
            self.history.note(f"{self.name}: {error!r}")
        await trio.sleep(self.rng.random())

    def _owned(self, cursor: Cursor) -> None:
        tape = self._tape
        tape.met["cursor_opened"] += 1
        tape.met["cursor_restarted"] += self.history.restarts > tape.restarts
        tape.restarts = self.history.restarts
        if cursor.fence in tape.fences:
            tape.wrong(f"a fence is not new: {cursor.fence}")
        tape.fences[cursor.fence] = None
        if tape.epoch not in (0, cursor.epoch):
            tape.wrong(f"the cursor was registered anew: {cursor.epoch} after {tape.epoch}")
        if not tape.epoch:
            # Where it began, unless an answer was lost: then nothing was acknowledged.
            tape.acked = tape.maybe_acked = cursor.processed
        if cursor.fence < tape.fence:
            # The answer took longer than the lease: somebody else has the cursor.
            return
        if not tape.acked <= cursor.processed <= tape.maybe_acked:
            tape.wrong(f"a place is not the one that was acknowledged: {cursor.processed}, not {tape.acked}")
        tape.fence, tape.epoch = cursor.fence, cursor.epoch

    async def _act(self, client: Client, cursor: Cursor) -> None:
        if self.scene.stuck:
            await trio.sleep(0.5)
            return
        if self.scene.closing:
            await self._read(cursor)
            await self._acknowledge(cursor, cursor.position)
            return
        kind = self.rng.choices(("read", "ack", "again", "rewind", "refused"), (8, 5, 3, 1, 1))[0]
        if kind == "read":
            await self._read(cursor)
        elif kind == "ack" and cursor.position > cursor.processed:
            await self._acknowledge(cursor, self.rng.randint(cursor.processed, cursor.position))
        elif kind == "again":
            await self._read_again(cursor)
        elif kind == "rewind":
            await cursor.seek("earliest")
        elif kind == "refused":
            await self._refused(client)
        await trio.sleep(self.rng.expovariate(4.0))

    async def _read(self, cursor: Cursor) -> None:
        before = cursor.position
        for message in await cursor.receive_many(self.rng.choice((1, 5, 200)), timeout=1.0):
            if message.sequence < before:
                self._tape.wrong(f"a message came out of order: {message.sequence} behind {before}")
            before = message.sequence + 1
            self._tape.read(self.name, message)

    async def _acknowledge(self, cursor: Cursor, to: int) -> None:
        tape = self._tape
        tape.maybe_acked = max(tape.maybe_acked, to)
        numbers = [number for sequence, (_, _, number) in tape.seen.items() if tape.acked <= sequence < to]
        op = self.history.settling(numbers)
        newest = tape.fence
        try:
            await cursor.ack_to(to)
        except MeshqError as error:
            self.history.settle_failed(op, error.outcome)
            raise
        self.history.settle_ok(op)
        tape.met["cursor_acked"] += bool(numbers)
        tape.acked = max(tape.acked, to)
        if cursor.fence < newest:
            tape.wrong(f"an owner that was replaced has acknowledged: {cursor.fence}, the last one is {newest}")

    async def _read_again(self, cursor: Cursor) -> None:
        """Read all that is not acknowledged, pinned, in one range; and compare."""
        tape, restarts = self._tape, self.history.restarts
        high = await cursor.high_mark()
        await cursor.pin(high)
        low = cursor.processed
        read: list[int] = []
        async with cursor.browse(low, high) as reader:
            async for message in reader:
                if read and message.sequence <= read[-1]:
                    tape.wrong(f"a range is out of order: {message.sequence} behind {read[-1]}")
                read.append(message.sequence)
                # A reader of its own: what has expired meanwhile may be in the buffer of the other one.
                tape.read(f"{self.name}-ranges", message)
        holes = await cursor.holes(low, high)
        # Another owner may have come meanwhile, or a restart that took what is not durable.
        if await cursor.high_mark() and tape.fence == cursor.fence and restarts == self.history.restarts:
            tape.check(low, high, read, holes)
            tape.looked = max(tape.looked, high)
            tape.pinned.update(dict.fromkeys(read))
            tape.met["cursor_replayed"] += bool(read)

    async def _refused(self, client: Client) -> None:
        """Try to take from the queue in another way, which has to be refused."""
        try:
            if self.rng.random() < 0.5:
                await client.purge_queue(TAPE)
            else:
                async with client.consumer(TAPE):
                    pass
        except CursorHeldError:
            self._tape.met["cursor_refused"] += 1
        except MeshqError as error:
            self.history.note(f"{self.name}: {error!r}")
        else:
            self._tape.wrong("somebody took from the queue of a cursor")
