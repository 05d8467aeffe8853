"""The log of a primary on its way to one replica: a copy first, and then each batch as it is placed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import trio

from meshq.abc import Env, RecordSource, Replica, ReplicaEnd, ReplicaLine, ReplicatedBatch, StoredBatch, StoredSegment
from meshq.concurrency import ChangeSignal
from meshq.errors import MeshqError, RefusedError
from meshq.ha.replication._batch_format import pack_batch
from meshq.ha.replication._catch_up_plan import CatchUp, SyncLeft, check_dense, tail_segments, within
from meshq.ha.replication._node_directory import BodyFile
from meshq.ha.replication._term import ReplicationTerm
from meshq.ha.replication.comparison._comparison_plan import read_answer
from meshq.limits import MIB
from meshq.wire import Log, Logged, Replicate

#: Bytes that wait unsent before nothing more is read for a replica; and those of batches in memory before it is
#: dropped, because it takes less than is placed.
UNSENT_BYTES_MAX = 1 * MIB
QUEUE_BYTES_MAX = 64 * MIB
BODY_BYTES = 1 * MIB
#: Seconds between two looks whether the last batch before the end of a copy is on the disk.
LOOK_S = 0.002
#: Seconds between two looks how much of a copy is left.
PROGRESS_S = 1.0
POOL = "ha"


class Feeder(ReplicaEnd[Logged]):
    """A replica, as its primary sees it.  ``lost``: called when the link has ended; ``over``: once, with the
    reason, when nothing more is sent, and with the word whether the replica knows."""

    def __init__(
        self,
        wanted: Replicate,
        line: ReplicaLine[Log],
        term: ReplicationTerm,
        *,
        source: RecordSource,
        files: BodyFile,
        env: Env,
        in_sync: Callable[[], None],
        lost: Callable[[Feeder], None],
        over: Callable[[str, bool], None],
    ) -> None:
        self._lost = lost
        #: The request of the replica, and when it came.
        self.wanted: Replicate = wanted
        self.since: float = trio.current_time()
        self._line = line
        self._term = term
        self._source = source
        self._files = files
        self._news = term.bodies.news
        self._env = env
        self._in_sync = in_sync
        self._over = over
        self._changed = ChangeSignal()
        self._queue: deque[tuple[Log, int, bytes]] = deque()
        #: Bytes that wait in memory.
        self.queued_bytes: int = 0
        #: What is left of the copy, as far as it is known now.
        self.left: SyncLeft = SyncLeft()
        # The last position that was sent, and those before each piece of a large body that is under way.
        self._sent = 0
        self._written: deque[int] = deque()
        #: Whether the replica has the counter of the store on its disk, as it has said.
        self.counted: bool = False
        #: Whether the replica was told that it is in sync: only then does it take over.
        self.told: bool = False
        self._ended = False

    # -- from the link

    def heard(self, answer: Logged, first: int) -> None:
        """Take a position, or the word that the replica can't go on."""
        replicator, now = self._term.replicator, trio.current_time()
        if self._ended:
            return
        if answer.kind == "failed":
            # It has said so itself: it does not take over.
            self._term.yielded = False
            self.end(answer.reason or "left", answer.text, known=True)
            return
        self.counted = self.counted or answer.kind == "joined"
        if answer.kind == "compared" and answer.number >= self._term.compared.number:
            # The answer to a question that nobody asks any more may come late.
            self._term.compared = read_answer(answer, first)
        if answer.kind == "voters":
            self._term.knows_voters = max(self._term.knows_voters, first)
        if answer.kind == "working":
            replicator.progressed(now, self._written.popleft() if self._written else self._sent)
        if answer.kind in ("position", "joined") and replicator.heard(first, now):
            self._in_sync()
        self._term.changed.tell()

    def say_in_sync(self, number: int = 0, voters: tuple[str, ...] = ()) -> None:
        """Tell the replica that it is in sync, by which change of the pair, and who votes about the next one."""
        self.told = True
        said = Log(kind="in_sync", members=(self.wanted.node_name,), number=number, voters=voters)
        self._say(said, self._term.replicator.has)
        self._line.flush()

    def say_voters(self, time: int, voters: tuple[str, ...]) -> None:
        """Tell the replica, the first ``time`` or a later one, that others vote from now on."""
        self._say(Log(kind="voters", voters=voters), time)
        self._line.flush()

    @property
    def name(self) -> str:
        """The name of the replica."""
        return self.wanted.node_name

    @property
    def compares(self) -> bool:
        """Whether the replica is of a version that can compare its store."""
        return self.wanted.compares

    def compare(self, number: int, beyond: int, upto: int, digests: bytes) -> None:
        """Ask for the first difference between two positions, once all is there that is placed."""
        self._queue.append((Log(kind="compare", number=number, base=upto), beyond, digests))
        self.queued_bytes += len(digests)
        self._changed.tell()

    def drained(self) -> None:
        """Go on."""
        self._changed.tell()

    def leaving(self) -> None:
        """Say which position is the last one."""
        order, self._term.leaving = self._term.order, True
        if self._ended or self._term.noted is False:
            # The replica asks for votes, as after a crash: this node would do so, too, in its next life.
            return
        last = Log(kind="stopped") if order is None else Log(kind="yielded", name=order.reason)
        while self._queue and self._queue[0][0].kind != "body":
            self._line.send(*self._queue.popleft())
        if self._queue:
            # A large body has to be read first, and what follows needs it: that is no last word.
            self._line.flush()
            return
        replicator = self._term.replicator
        # A replica that is in sync and hears that takes over, be it that its disk is a little behind.
        self._term.yielded = replicator.in_sync and self.told
        self._line.send(last, replicator.placed)
        self._line.flush()

    def lost(self) -> None:
        """Send nothing more."""
        self._lost(self)

    @property
    def ended(self) -> bool:
        """Whether nothing more is sent."""
        return self._ended

    def end(self, reason: str, text: str = "", *, known: bool = False) -> None:
        """Drop the replica; later calls are silent.  ``known``: it does not take over."""
        if self._ended:
            return
        self._ended = True
        if self._term.taker == self.take:
            self._term.taker = None
        self._term.bodies.end()
        self._line.send(Log(kind="dropped"), 0)
        self._queue.clear()
        self._line.end(f"the replica is dropped ({reason}) {text}".strip())
        self._changed.tell()
        self._term.changed.tell()
        self._over(reason, known)

    # -- the log

    def shown(self, reason: str, *, in_sync: bool) -> Replica:
        """The replica as a program sees it; ``reason``: why it is given up, or empty."""
        return Replica(
            name=self.wanted.node_name,
            instance=self.wanted.instance,
            url=self.wanted.place,
            in_sync=in_sync and not reason,
            records_behind=self._term.replicator.behind,
            bytes_behind=self._term.replicator.backlog.size_bytes,
            since=self.since,
            dropped_reason=reason,
        )

    async def tell_progress(self, tell: Callable[[Feeder], None]) -> None:
        """Tell whenever less of the copy is left than before, until there is no copy.

        Checkpoint: always.  Cancellation: nothing is told any more.
        """
        told = self.left.records, self.left.size_bytes
        while True:
            await trio.sleep(PROGRESS_S)
            if self.ended or self._term.replicator.state != "copying":
                return
            left = self.left.records, self.left.size_bytes
            if left != told:
                tell(self)
                told = left

    async def run(self) -> None:
        """Send the log until the link ends.

        Checkpoint: always.
        Cancellation: nothing more is sent.
        """
        try:
            async with self._source.holding():
                await self._catch_up()
            while not self._ended:
                await self._send_queue()
                if not self._queue:
                    await self._changed.wait()
        except (MeshqError, OSError) as error:
            self.end("full_disk" if self._source.full else "disk", str(error))

    async def _catch_up(self) -> None:
        term, source = self._term, self._source
        term.bodies.begin()
        upto = source.synced
        for name in await self._env.threads.run(self._files.names, pool=POOL):
            await self._send_body(name)
        segments = source.segments()
        self.left = SyncLeft(segments)
        for segment in segments:
            self._check()
            self.left.begin(segment.number)
            batches = within(await source.read(segment.number), upto)
            await self._send_all(batches, segment)
            if batches:
                self._say(Log(kind="segment", segment=segment.number, base=segment.base, compacted=segment.compacted))
        self.left = SyncLeft()
        self._say(Log(kind="copied"), upto)
        term.replicator.expect(upto, trio.current_time())
        term.changed.tell()
        rounds = CatchUp(upto)
        await self._until_has(upto)
        while not rounds.nearly(term.replicator.placed, term.replicator.has):
            rounds.position = await self._send_tail(rounds.position, source.synced)
            term.replicator.expect(rounds.position, trio.current_time())
            # Also in this round the replica has so long.
            term.changed.tell()
            await self._until_has(rounds.position)
        self._check()
        goal = term.replicator.join(trio.current_time())
        term.taker = self.take
        self._say(Log(kind="joined"), goal)
        self._line.flush()
        term.changed.tell()
        while rounds.position < goal:
            while source.synced < goal:
                self._check()
                await trio.sleep(LOOK_S)
            rounds.position = await self._send_tail(rounds.position, goal)

    async def _until_has(self, position: int) -> None:
        """Wait until a position is on the disk of the replica."""
        self._line.flush()
        while self._term.replicator.has < position:
            self._check()
            await self._term.changed.wait()
        self._check()

    async def _send_tail(self, position: int, upto: int) -> int:
        """Send the batches beyond a position; return that of the last one."""
        for segment in tail_segments(self._source.segments(), position):
            self._check()
            batches = within(await self._source.read(segment.number, position), upto)
            position = check_dense(batches, position)
            await self._send_news()
            await self._send_all(batches, None)
        return position

    def _check(self) -> None:
        if self._ended:
            raise RefusedError("the link to the replica has ended")
        if self._source.full:
            raise RefusedError("the disk of the primary is full")

    async def _send_all(self, batches: Iterable[StoredBatch], segment: StoredSegment | None) -> None:
        for batch in batches:
            about = (0, 0, False) if segment is None else (segment.number, segment.base, segment.compacted)
            header, body = pack_batch(batch, *about)
            self.left.sent(header.rows, len(body))
            self._say(header, batch.first, body)
            await self._room()

    def take(self, batch: ReplicatedBatch) -> None:
        """Put a batch in line that is being placed."""
        while self._news:
            name, made = self._news.popleft()
            self._queue.append((Log(kind="body" if made else "removed", name=name), 0, b""))
        content = b"".join(batch.parts)
        stored = StoredBatch(first=batch.first, flags=batch.flags, rows=batch.rows, content=content)
        header, body = pack_batch(stored)
        self._queue.append((header, batch.first, body))
        self.queued_bytes += len(body)
        if self.queued_bytes > QUEUE_BYTES_MAX:
            self.end("slow", "it takes less than is placed")
        self._changed.tell()

    async def _send_queue(self) -> None:
        while self._queue and not self._ended:
            header, first, body = self._queue.popleft()
            self.queued_bytes -= len(body)
            if header.kind == "body":
                await self._send_body(header.name)
            else:
                self._say(header, first, body)
            if self.queued_bytes > UNSENT_BYTES_MAX:
                await self._room()
        await self._room()

    async def _send_news(self) -> None:
        """Send the bodies that were made meanwhile, and say which were removed."""
        while self._news and not self._ended:
            name, made = self._news.popleft()
            if made:
                await self._send_body(name)
            else:
                self._say(Log(kind="removed", name=name))

    async def _send_body(self, name: str) -> None:
        """Send a body, unless it is removed meanwhile: then no record that the replica will have needs it."""
        offset = 0
        while not self._ended:
            data = await self._env.threads.run(self._files.read, name, offset, BODY_BYTES, pool=POOL)
            if data is None:
                return
            last = len(data) < BODY_BYTES
            self._say(Log(kind="body", name=name, last=last), offset, data)
            await self._room()
            if last:
                return
            offset += len(data)

    def _say(self, piece: Log, first: int = 0, body: bytes = b"") -> None:
        if piece.kind == "batch":
            self._sent = first + piece.rows - 1
        elif piece.kind == "body":
            self._written.append(self._sent)
        self._line.send(piece, first, body)

    async def _room(self) -> None:
        """Wait until not too much waits unsent."""
        await trio.lowlevel.checkpoint()
        while self._line.flush() > UNSENT_BYTES_MAX and not self._ended:
            await self._changed.wait()
