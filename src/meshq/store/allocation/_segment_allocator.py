"""The segment allocator: segments that are made ahead of need, and the watch over a full disk.

A sync of a file whose blocks exist and were written before is the cheapest sync, so segments are filled with zeros
before they are used, in another thread than the journal's.  There a full disk is noticed first: before any message was
accepted.  Then new messages are refused, and everything else continues in a *reserve* segment that was made earlier:
consumers can drain the queues, and that frees space.  A *ballast* of a few pages does the same for the manifest,
without which nothing could be reclaimed.

A new record that is too large for the reserve needs its space before it is placed (``request``): once it is placed,
every later record waits for it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from meshq.abc import Disk, Env
from meshq.concurrency import Wakeup
from meshq.lifecycle import LifeCycle, Transitions
from meshq.limits import MIB, SEGMENT_HEADER_BYTES
from meshq.store.allocation._ballast import POOL, Ballast
from meshq.store.allocation._batch_space import reserve_bytes
from meshq.store.allocation._pending_batch import PendingBatch
from meshq.store.allocation._retry_pause import RETRY_S_MAX, RetryPause
from meshq.store.directory._ping_pong_file import DiskFullError, is_disk_full
from meshq.store.formats._layout_format import BALLAST, Layout
from meshq.store.segments._segment_writer import PreallocatedSegment

ZEROS: Final = bytes(MIB)
#: The smallest reserve that is of use, where the disk has no space for a whole one.
RESERVE_BYTES_MIN: Final = 2 * SEGMENT_HEADER_BYTES
#: The next segment is made when this share of the active one is used.
AHEAD_SHARE: Final = 4
#: ``run``: the task that prepares begins.  ``stop``: the task is told to end, because the journal is being closed or
#: has failed.  ``end``: the task has ended.
ALLOCATOR_TRANSITIONS: Final[Transitions] = {
    "new": {"run": "running", "stop": "stopped"},
    "running": {"stop": "stopping", "end": "ended"},
    "stopping": {"stop": "stopping", "end": "ended"},
    "stopped": {"run": "stopping", "stop": "stopped"},
    "ended": {"stop": "ended"},
}


def preallocate_segment(disk: Disk, layout: Layout, number: int, capacity: int) -> PreallocatedSegment:
    """Make a segment of zeros, durable on return with its name.

    Raises:
        DiskFullError: the disk is full; the attempt was undone.
        OSError: anything else failed.
    """
    path = layout.segment(number)
    try:
        file = disk.open(path, create=True)
        try:
            for offset in range(0, capacity, len(ZEROS)):
                file.write_at(offset, [ZEROS[: capacity - offset]])
            file.sync()
            disk.sync_directory(layout.journal)
        except BaseException:
            file.close()
            raise
    except OSError as error:
        if not is_disk_full(error):
            raise
        with contextlib.suppress(FileNotFoundError):
            disk.remove(path)
        raise DiskFullError(error.errno, error.strerror, path) from error
    return PreallocatedSegment(number, capacity, file)


class SegmentAllocator:
    """The preallocated segments of one journal, and whether the disk is full.

    ``on_full_changed`` is called whenever ``full`` has changed.
    """

    __slots__ = (
        "_ballast",
        "_env",
        "_held",
        "_layout",
        "_life",
        "_offered",
        "_on_full_changed",
        "_pause",
        "_requests",
        "_reserve",
        "_segment_bytes",
        "_segment_found",
        "_segment_ready",
        "_spare",
        "_spare_requested",
        "_surplus",
        "_wakeup",
        "full",
        "next_number",
        "space_known",
    )

    def __init__(
        self, env: Env, layout: Layout, segment_bytes: int, next_number: int, on_full_changed: Callable[[], None]
    ) -> None:
        self._env = env
        self._layout = layout
        self._segment_bytes = segment_bytes
        self.next_number: int = next_number
        #: Whether the disk has no space for new messages.
        self.full: bool = False
        self._on_full_changed = on_full_changed
        self._spare: PreallocatedSegment | None = None
        self._reserve: PreallocatedSegment | None = None
        self._ballast = Ballast(env, f"{layout.journal}/{BALLAST}")
        #: A spare segment is needed soon, or now.
        self._spare_requested = False
        #: Set when spare and reserve are ready, or the disk is known to be full.
        self.space_known: trio.Event = trio.Event()
        # Requests for a segment, by bytes, and the function to call then.
        self._requests: deque[tuple[int, Callable[[], None]]] = deque()
        # The segment for the request that is being answered.
        self._offered: PreallocatedSegment | None = None
        # A manifest, or a compaction that frees space, needs the space that is left: nothing is made.
        self._held = False
        # A segment that was missing is there, and ``full`` was not checked since.
        self._segment_found = False
        # Segments that are not needed, to be removed.
        self._surplus: list[PreallocatedSegment] = []
        self._wakeup = Wakeup()
        self._segment_ready = Wakeup()
        self._pause = RetryPause()
        self._life: Final = LifeCycle("segment allocator", ALLOCATOR_TRANSITIONS)

    @property
    def _prepares(self) -> bool:
        """Whether the task that prepares can still answer."""
        return self._life.state in ("running", "stopping")

    def report_used(self, share_bytes: int, capacity: int) -> None:
        """Report how much of the active segment is used; the next segment is made in time."""
        if share_bytes * AHEAD_SHARE >= capacity:
            self.request_spare()

    def request_spare(self) -> None:
        """Ask for a spare segment, as a write is coming: so a full disk is known at once."""
        if not self._spare_requested and self._spare is None:
            self._spare_requested = True
            self._wakeup.wake()

    def retry_now(self) -> None:
        """Try again now if the disk was full, because a file was removed."""
        if self.full:
            self._wakeup.wake()

    def stop(self) -> None:
        """End ``run``; a waiting ``allocate`` makes its segment itself, once."""
        self._life.on("stop")
        self._pause.stop()
        self._wakeup.wake()
        self._segment_ready.wake()

    # -- the task that prepares ----------------------------------------------------------------------------------

    async def run(self, before_first: Callable[[], Awaitable[None]]) -> None:
        """Keep a spare and a reserve ready until ``stop``.

        ``before_first`` is called before the first segment is made: it truncates the segments of earlier lives.
        """
        self._life.on("run")
        try:
            await before_first()
            while self._life.state == "running":
                if self._surplus:
                    await self._env.threads.run(self._remove, self._surplus.pop(), pool=POOL)
                    continue
                if self._requests and (self.full or (self._is_ready() and not self._held)):
                    await self._answer_request()
                    continue
                if self._held:
                    await self._wakeup.wait()
                    continue
                if self._is_ready():
                    if self._segment_found:
                        self._segment_found = False
                        self._set_full(False)
                    self.space_known.set()
                    await self._wakeup.wait()
                    continue
                try:
                    await self._make_next()
                except DiskFullError:
                    self._set_full(True)
                    self.space_known.set()
                    if self._spare is not None and not self._has_reserve:
                        # The spare takes the space that the reserve needs.
                        self._surplus.append(self._spare)
                        self._spare, self._spare_requested = None, True
                        continue
                    with trio.move_on_after(self._pause.seconds):
                        await self._wakeup.wait()
                    self._pause.lengthen()
                else:
                    if self.full and self._is_ready():
                        self._pause.reset()
                        self._set_full(False)
                    self._segment_ready.wake()
        finally:
            self._life.on("end")
            self.space_known.set()
            self._segment_ready.wake()
            while self._requests:
                self._requests.popleft()[1]()

    def _is_ready(self) -> bool:
        wanted = self._spare is not None or not (self._spare_requested or self.full)
        return wanted and self._has_reserve

    @property
    def _has_reserve(self) -> bool:
        """Whether the reserve and the ballast are complete, so that a full disk could be drained."""
        reserve = self._reserve
        whole = reserve is not None and reserve.capacity >= self.reserve_bytes
        return whole and not self._ballast.missing

    @property
    def spare_bytes(self) -> int:
        """The capacity of the spare segment if it is ready and will stay; else 0."""
        return self._spare.capacity if self._spare is not None and self._has_reserve else 0

    @property
    def short_of_reserve(self) -> bool:
        """Whether the disk is full and the reserve is not complete."""
        return self.full and not self._has_reserve

    async def _make_next(self) -> None:
        """Make the most urgent missing file: first the files that a full disk needs, then the requested segment.

        Raises: DiskFullError if the file could not be made, or only a smaller one.
        """
        if self._ballast.missing:
            # Without a ballast no manifest could list a new segment.
            await self._ballast.make()
        elif self._spare_requested and self._spare is None and not self.full:
            self._keep_as_spare(await self._preallocate(self._segment_bytes))
        elif self._reserve is None:
            self._reserve = await self._make_reserve()
            if self._reserve.capacity < self.reserve_bytes:
                self._segment_ready.wake()
                raise DiskFullError("no room for the whole reserve")
        elif not self._has_reserve:
            whole = await self._preallocate(self.reserve_bytes)
            small, self._reserve = self._reserve, whole
            # The commit task may have taken the small reserve meanwhile.
            if small is not None:
                self._surplus.append(small)
        else:
            self._keep_as_spare(await self._preallocate(self._segment_bytes))
        if self._spare is not None:
            self._spare_requested = False

    async def _make_reserve(self) -> PreallocatedSegment:
        """Make the reserve as large as the disk allows; most of the ballast may be given up for it."""
        capacity = self.reserve_bytes
        while True:
            try:
                return await self._preallocate(capacity)
            except DiskFullError:
                capacity //= 2
                if capacity >= RESERVE_BYTES_MIN:
                    continue
                if not await self._ballast.shrink():
                    raise
                capacity = self.reserve_bytes

    async def remove_ballast_for_space(self) -> bool:
        """Remove the ballast for an action that frees more; False if there was none.

        Nothing is made until ``release_space``, which has the ballast made again.
        """
        self._held = True
        return await self._ballast.remove_for_space()

    @property
    def reserve_bytes(self) -> int:
        """The size of the reserve."""
        return reserve_bytes(self._segment_bytes)

    async def _preallocate(self, capacity: int) -> PreallocatedSegment:
        number = self.next_number
        self.next_number += 1
        return await self._env.threads.run(
            preallocate_segment, self._env.disk, self._layout, number, capacity, pool=POOL
        )

    def _set_full(self, full: bool) -> None:
        if self.full != full:
            self.full = full
            self._segment_ready.wake()
            self._on_full_changed()

    # -- allocation ------------------------------------------------------------------------------------------

    async def allocate(self, capacity: int) -> PreallocatedSegment:
        """Return a preallocated segment of at least ``capacity`` bytes; wait on a full disk.

        Raises:
            DiskFullError: the disk is full, and this journal is being closed.
            OSError: the disk failed.
        """
        while True:
            preallocated = self._take_ready(capacity)
            if preallocated is not None:
                return preallocated
            if capacity > self._segment_bytes or not self._prepares:
                try:
                    preallocated = await self._preallocate(max(capacity, self._segment_bytes))
                except DiskFullError:
                    if not self._prepares:
                        raise
                    self._set_full(True)
                    self._wakeup.wake()
                else:
                    if self.full:
                        self._check_full_again()
                    return preallocated
                with trio.move_on_after(RETRY_S_MAX):
                    await self._segment_ready.wait()
            else:
                self._spare_requested = True
                self._wakeup.wake()
                await self._segment_ready.wait()

    def _take_ready(self, capacity: int) -> PreallocatedSegment | None:
        if self._spare is not None and self._spare.capacity >= capacity:
            preallocated, self._spare = self._spare, None
            return preallocated
        spent = self.full or not self._prepares
        if spent and self._reserve is not None and self._reserve.capacity >= capacity:
            preallocated, self._reserve = self._reserve, None
            return preallocated
        return None

    # -- space before placing ----------------------------------------------------------------------------

    def has_segment(self, capacity: int) -> bool:
        """Whether ``claim`` would return a segment; True before ``run``, as the journal then makes its segments
        itself.
        """
        return not self._prepares or any(
            preallocated is not None and preallocated.capacity >= capacity
            for preallocated in (self._offered, self._spare)
        )

    def request(self, capacity: int, then: Callable[[], None]) -> bool:
        """Ask for a segment; ``then`` is called once, in this task, when it exists or the disk is full.

        The segment is offered as long as that call lasts.  Returns True, without a call, if there is no need to wait.
        """
        if self.full or self.has_segment(capacity):
            return True
        self._requests.append((capacity, then))
        self._wakeup.wake()
        return False

    async def _answer_request(self) -> None:
        capacity, then = self._requests[0]
        if not self.full and not self.has_segment(capacity):
            # Behind a record that is larger than a segment its acknowledgements need space.
            behind = self.reserve_bytes if capacity > self._segment_bytes else 0
            try:
                self._offered = await self._preallocate(max(capacity + behind, self._segment_bytes))
            except DiskFullError:
                if capacity <= self._segment_bytes:
                    self._set_full(True)
        self._requests.popleft()
        then()
        preallocated, self._offered = self._offered, None
        if preallocated is not None:
            self._keep_as_spare(preallocated)

    def claim(self, capacity: int) -> PreallocatedSegment | None:
        """Take a segment for the records that are being placed; the caller writes to it or releases it."""
        if self._offered is not None and self._offered.capacity >= capacity:
            preallocated, self._offered = self._offered, None
            return preallocated
        if self._spare is not None and self._spare.capacity >= capacity:
            preallocated, self._spare = self._spare, None
            self._spare_requested = True
            self._wakeup.wake()
            return preallocated
        return None

    def release(self, batch: PendingBatch) -> None:
        """Take back a segment that was claimed for a batch and is not needed."""
        preallocated, batch.preallocated = batch.preallocated, None
        if preallocated is not None:
            self._keep_as_spare(preallocated)
            self._check_full_again()

    def _check_full_again(self) -> None:
        """Have ``full`` checked, as a segment that was missing is there.

        Also if ``full`` is False: the disk may be found full while a segment is claimed.
        """
        self._segment_found = True
        self._wakeup.wake()

    def _keep_as_spare(self, preallocated: PreallocatedSegment) -> None:
        """Keep a segment as the spare, unless another segment became the spare meanwhile."""
        if self._spare is None:
            self._spare, self._spare_requested = preallocated, False
            self._segment_ready.wake()
        else:
            self._surplus.append(preallocated)
            self._wakeup.wake()

    def _remove(self, preallocated: PreallocatedSegment) -> None:
        preallocated.file.close()
        self._env.disk.remove(self._layout.segment(preallocated.number))

    async def free_for_manifest(self) -> bool:
        """Remove the ballast, else a segment that was made ahead, as a manifest found no space; False without any.

        Without a manifest no segment begins or goes, so nothing is made until ``release_space``.
        """
        if await self.remove_ballast_for_space():
            return True
        if self._spare is not None:
            given_up, self._spare, self._spare_requested = self._spare, None, True
        elif self._reserve is not None:
            given_up, self._reserve = self._reserve, None
        else:
            return False
        self._report_full()
        await self._env.threads.run(self._remove, given_up, pool=POOL)
        return True

    async def wait_for_manifest_space(self) -> None:
        """Wait a little: a manifest found no space, and nothing is left to remove.

        Raises: DiskFullError if this journal is being closed.
        """
        if self._life.state != "running":
            raise DiskFullError("no room for a manifest")
        self._report_full()
        await self._pause.wait()

    def _report_full(self) -> None:
        """Report a full disk that another task than the preparing one has found."""
        self._set_full(True)
        self.space_known.set()
        self._wakeup.wake()

    def release_space(self) -> None:
        """Make files again, a removed ballast among them: a manifest was written, or a compaction was given up."""
        held, self._held = self._held, False
        if self._ballast.wanted_again() or held:
            self._wakeup.wake()

    def remove_unused(self) -> None:
        """Close and remove the preallocated segments.  Blocks.  Raises: OSError."""
        for preallocated in (self._spare, self._reserve, *self._surplus):
            if preallocated is not None:
                self._remove(preallocated)
        self._surplus = []
        self._ballast.remove_now()
        self._spare = self._reserve = None

    def close(self) -> None:
        """Close the files only: the disk has failed."""
        for preallocated in (self._spare, self._reserve, *self._surplus):
            if preallocated is not None:
                preallocated.file.close()
