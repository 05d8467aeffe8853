"""Room on the disk, made ahead of need.

A sync of a file whose blocks exist and were written before is the cheapest there is, so segments are filled with
zeros before they are used, in another thread than the journal's.  That is also where a full disk is noticed first:
before anybody was promised anything.  Then new messages are refused, and everything else goes on in a *reserve*
segment that was made in better times: consumers can drain, and what they drain gives room back.  A *ballast* of a
few pages does the same for the manifest, without which nothing could be given back.

What the reserve could not take, and is new, has room made for it before it is placed (``ask``): once it is placed,
everything behind it waits for it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from meshq.abc import Disk, Env
from meshq.limits import KIB, MIB, SEGMENT_HEADER_BYTES
from meshq.store._batch_space import reserve_bytes
from meshq.store._layout_format import BALLAST, Layout
from meshq.store._pending_batch import PendingBatch
from meshq.store._ping_pong_file import DiskFullError, is_disk_full, write_new
from meshq.store._segment_writer import PreallocatedSegment
from meshq.store._wakeup import Wakeup

#: Segments are prepared, copied and removed here, so that commits never wait for that.
POOL: Final = "background"
ZEROS: Final = memoryview(bytes(MIB))
#: A manifest of a thousand segments; where there is no room for that, of a hundred.
BALLAST_BYTES: Final = 64 * KIB
BALLAST_BYTES_MIN: Final = 8 * KIB
#: Where the disk has no room for the whole reserve, the least that is of use.
RESERVE_BYTES_MIN: Final = 2 * SEGMENT_HEADER_BYTES
#: The next segment is made when this share of the active one is used.
AHEAD_SHARE: Final = 4
#: Pauses between two attempts on a full disk.
RETRY_S_MIN: Final = 0.05
RETRY_S_MAX: Final = 5.0


def preallocate_segment(disk: Disk, layout: Layout, number: int, capacity: int) -> PreallocatedSegment:
    """A segment of zeros, durable on return with its name.

    Raises:
        NoRoomError: the disk is full; nothing is left of the attempt.
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
    """The blank segments of one journal, and whether the disk is full."""

    __slots__ = (
        "_ballast",
        "_ballast_removed",
        "_env",
        "_layout",
        "_offered",
        "_pause_s",
        "_requests",
        "_reserve",
        "_running",
        "_segment_bytes",
        "_segment_ready",
        "_segment_released",
        "_spare",
        "_spare_requested",
        "_stopping",
        "_surplus",
        "_wakeup",
        "before_first",
        "full",
        "next_number",
        "on_change",
        "space_known",
    )

    def __init__(self, env: Env, layout: Layout, segment_bytes: int, next_number: int) -> None:
        self._env = env
        self._layout = layout
        self._segment_bytes = segment_bytes
        self.next_number = next_number
        #: No room for new messages.
        self.full = False
        #: Called before anything is made: what an earlier life left may be room.
        self.before_first: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        #: Called whenever ``full`` has changed.
        self.on_change: Callable[[], None] | None = None
        self._spare: PreallocatedSegment | None = None
        self._reserve: PreallocatedSegment | None = None
        #: Its bytes, if it is there.
        self._ballast = 0
        #: The ballast was given up for a manifest that is not written yet.
        self._ballast_removed = False
        #: The spare is needed soon, or now.
        self._spare_requested = False
        #: Set when the journal may write as it likes, or is known to have no room for that.
        self.space_known = trio.Event()
        # Who wants a blank of at least so many bytes before it places anything, and what to call then.
        self._requests: deque[tuple[int, Callable[[], None]]] = deque()
        # There while whoever asked for it is called.
        self._offered: PreallocatedSegment | None = None
        # A blank was given back, and nobody has looked since whether the disk counts as full for want of it.
        self._segment_released = False
        # Nobody needed them after all; to be removed.
        self._surplus: list[PreallocatedSegment] = []
        self._wakeup = Wakeup()
        self._segment_ready = Wakeup()
        self._pause_s = RETRY_S_MIN
        self._running = False
        self._stopping = False

    def report_used(self, share_bytes: int, capacity: int) -> None:
        """The active segment is used so far; asks for the next one in time."""
        if share_bytes * AHEAD_SHARE >= capacity:
            self.request_spare()

    def request_spare(self) -> None:
        """Somebody is about to write: so it is known at once if there is no room for a segment."""
        if not self._spare_requested and self._spare is None:
            self._spare_requested = True
            self._wakeup.wake()

    def retry_now(self) -> None:
        """Something was removed: try again now if the disk was full."""
        if self.full:
            self._wakeup.wake()

    def stop(self) -> None:
        """End ``run``; a waiting ``allocate`` makes its segment itself, once."""
        self._stopping = True
        self._wakeup.wake()
        self._segment_ready.wake()

    # -- the task that prepares ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep a spare and a reserve at hand until ``stop``."""
        self._running = True
        try:
            await self.before_first()
            while not self._stopping:
                if self._surplus:
                    await self._env.threads.run(self._remove, self._surplus.pop(), pool=POOL)
                    continue
                if self._requests and (self.full or self._is_ready()):
                    await self._answer_request()
                    continue
                if self._is_ready():
                    if self._segment_released:
                        # What was missing is there, though nothing had to be made for that.
                        self._segment_released = False
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
                        # It has the room of what a full disk is drained with.
                        self._surplus.append(self._spare)
                        self._spare, self._spare_requested = None, True
                        continue
                    with trio.move_on_after(self._pause_s):
                        await self._wakeup.wait()
                    self._pause_s = min(self._pause_s * 2, RETRY_S_MAX)
                else:
                    if self.full and self._is_ready():
                        self._pause_s = RETRY_S_MIN
                        self._set_full(False)
                    self._segment_ready.wake()
        finally:
            self._running = False
            self.space_known.set()
            self._segment_ready.wake()
            while self._requests:
                self._requests.popleft()[1]()

    def _is_ready(self) -> bool:
        wanted = self._spare is not None or not (self._spare_requested or self.full)
        return wanted and self._has_reserve

    @property
    def _has_reserve(self) -> bool:
        """Whether a full disk would find what it is to be drained with."""
        reserve = self._reserve
        whole = reserve is not None and reserve.capacity >= self.reserve_bytes
        return whole and (self._ballast > 0 or self._ballast_removed)

    @property
    def spare_bytes(self) -> int:
        """What the next segment holds, if it is there to stay; else 0."""
        return self._spare.capacity if self._spare is not None and self._has_reserve else 0

    @property
    def short_of_reserve(self) -> bool:
        """Whether the disk is full, and less is left to go on with than there should be."""
        return self.full and not self._has_reserve

    async def _make_next(self) -> None:
        """Make what is missing most: what keeps a full disk going, then what is waited for.

        Raises: NoRoomError if it could not be made, or not whole.
        """
        if not (self._ballast or self._ballast_removed):
            # Without it no segment could be put to use, however many there are.
            await self._make_ballast()
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
            # Whoever writes may have taken the small one meanwhile.
            if small is not None:
                self._surplus.append(small)
        else:
            self._keep_as_spare(await self._preallocate(self._segment_bytes))
        if self._spare is not None:
            self._spare_requested = False

    async def _make_reserve(self) -> PreallocatedSegment:
        """The reserve, as large as there is room for; the most of the ballast makes some."""
        capacity = self.reserve_bytes
        while True:
            try:
                return await self._preallocate(capacity)
            except DiskFullError:
                capacity //= 2
                if capacity >= RESERVE_BYTES_MIN:
                    continue
                if self._ballast <= BALLAST_BYTES_MIN:
                    raise
                await self._remove_ballast()
                await self._make_ballast(BALLAST_BYTES_MIN)
                capacity = self.reserve_bytes

    async def _make_ballast(self, size: int = BALLAST_BYTES) -> None:
        path = f"{self._layout.journal}/{BALLAST}"
        while not self._ballast:
            try:
                await self._env.threads.run(_make_ballast, self._env.disk, path, size, pool=POOL)
                self._ballast = size
            except DiskFullError:
                if size == BALLAST_BYTES_MIN:
                    raise
                size = BALLAST_BYTES_MIN

    async def _remove_ballast(self) -> None:
        # At once: both whoever makes room and whoever writes a manifest may want to.
        self._ballast = 0
        path = f"{self._layout.journal}/{BALLAST}"
        await self._env.threads.run(self._env.disk.remove, path, pool=POOL)

    async def remove_ballast_for_space(self) -> None:
        """Give the ballast up for what frees more; the next manifest that is written has it made again."""
        if self._ballast:
            self._ballast_removed = True
            await self._remove_ballast()

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
            if self.on_change is not None:
                self.on_change()

    # -- who needs room ------------------------------------------------------------------------------------------

    async def allocate(self, capacity: int) -> PreallocatedSegment:
        """A blank of at least ``capacity`` bytes; waits on a full disk.

        Raises:
            NoRoomError: the disk is full, and this journal is being closed.
            OSError: the disk failed.
        """
        while True:
            preallocated = self._take_ready(capacity)
            if preallocated is not None:
                return preallocated
            if capacity > self._segment_bytes or not self._running:
                try:
                    return await self._preallocate(max(capacity, self._segment_bytes))
                except DiskFullError:
                    if not self._running:
                        raise
                    self._set_full(True)
                    self._wakeup.wake()
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
        spent = self.full or not self._running
        if spent and self._reserve is not None and self._reserve.capacity >= capacity:
            preallocated, self._reserve = self._reserve, None
            return preallocated
        return None

    # -- who wants to know beforehand ----------------------------------------------------------------------------

    def has_segment(self, capacity: int) -> bool:
        """Whether ``claim`` would give something; a journal that does not run yet makes what it needs itself."""
        return not self._running or any(
            preallocated is not None and preallocated.capacity >= capacity
            for preallocated in (self._offered, self._spare)
        )

    def request(self, capacity: int, then: Callable[[], None]) -> bool:
        """Have a blank made; ``then`` is called once, in this task, when it is there or the disk has no room for it.

        It is there as long as that call lasts.  Returns True, and calls nobody, if there is nothing to wait for.
        """
        if self.full or self.has_segment(capacity):
            return True
        self._requests.append((capacity, then))
        self._wakeup.wake()
        return False

    async def _answer_request(self) -> None:
        capacity, then = self._requests[0]
        if not self.full and not self.has_segment(capacity):
            # Behind what is larger than a segment the acknowledgements of it find room.
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
        """A blank for what is being placed, if there is one; whoever has it writes to it or gives it back."""
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
        """What was claimed for a batch was not needed after all."""
        preallocated, batch.preallocated = batch.preallocated, None
        if preallocated is not None:
            self._keep_as_spare(preallocated)
            # Also if the disk is not known to be full yet: that may be found out while this was claimed.
            self._segment_released = True
            self._wakeup.wake()

    def _keep_as_spare(self, preallocated: PreallocatedSegment) -> None:
        """It is the spare, unless another one was given back while it was made."""
        if self._spare is None:
            self._spare, self._spare_requested = preallocated, False
            self._segment_ready.wake()
        else:
            self._surplus.append(preallocated)
            self._wakeup.wake()

    def _remove(self, preallocated: PreallocatedSegment) -> None:
        preallocated.file.close()
        self._env.disk.remove(self._layout.segment(preallocated.number))

    async def wait_for_manifest_space(self) -> None:
        """Give the ballast up, or wait a little: a manifest found no room.

        Raises: NoRoomError if there is nothing to give up and this journal is being closed.
        """
        if self._ballast:
            await self.remove_ballast_for_space()
            return
        if self._stopping or not self._running:
            raise DiskFullError("no room for a manifest")
        self._set_full(True)
        await trio.sleep(self._pause_s)

    def manifest_written(self) -> None:
        """The manifest found room."""
        if self._ballast_removed:
            self._ballast_removed = False
            self._wakeup.wake()

    def remove_unused(self) -> None:
        """Close and remove what was made ahead.  Blocks.  Raises: OSError."""
        for preallocated in (self._spare, self._reserve, *self._surplus):
            if preallocated is not None:
                self._remove(preallocated)
        self._surplus = []
        if self._ballast:
            self._env.disk.remove(f"{self._layout.journal}/{BALLAST}")
        self._spare = self._reserve = None
        self._ballast = 0

    def close(self) -> None:
        """Close the files only: the disk has failed."""
        for preallocated in (self._spare, self._reserve, *self._surplus):
            if preallocated is not None:
                preallocated.file.close()


def _make_ballast(disk: Disk, path: str, size: int) -> None:
    try:
        write_new(disk, path, bytes(size))
    except OSError as error:
        if not is_disk_full(error):
            raise
        with contextlib.suppress(FileNotFoundError):
            disk.remove(path)
        raise DiskFullError(error.errno, error.strerror, path) from error
