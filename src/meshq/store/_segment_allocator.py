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
from meshq.store._pending_batch import Gathered
from meshq.store._ping_pong_file import NoRoomError, is_full, write_new
from meshq.store._segment_writer import Blank
from meshq.store._wakeup import Bell

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


def make_blank(disk: Disk, layout: Layout, number: int, capacity: int) -> Blank:
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
        if not is_full(error):
            raise
        with contextlib.suppress(FileNotFoundError):
            disk.remove(path)
        raise NoRoomError(error.errno, error.strerror, path) from error
    return Blank(number, capacity, file)


class Room:
    """The blank segments of one journal, and whether the disk is full."""

    __slots__ = (
        "_arrived",
        "_asked",
        "_ballast",
        "_bell",
        "_came_back",
        "_demand",
        "_env",
        "_layout",
        "_lent",
        "_offered",
        "_pause_s",
        "_reserve",
        "_running",
        "_segment_bytes",
        "_spare",
        "_stopping",
        "_surplus",
        "before",
        "full",
        "next_number",
        "on_change",
        "settled",
    )

    def __init__(self, env: Env, layout: Layout, segment_bytes: int, next_number: int) -> None:
        self._env = env
        self._layout = layout
        self._segment_bytes = segment_bytes
        self.next_number = next_number
        #: No room for new messages.
        self.full = False
        #: Called before anything is made: what an earlier life left may be room.
        self.before: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        #: Called whenever ``full`` has changed.
        self.on_change: Callable[[], None] | None = None
        self._spare: Blank | None = None
        self._reserve: Blank | None = None
        #: Its bytes, if it is there.
        self._ballast = 0
        #: The ballast was given up for a manifest that is not written yet.
        self._lent = False
        #: The spare is needed soon, or now.
        self._demand = False
        #: Set when the journal may write as it likes, or is known to have no room for that.
        self.settled = trio.Event()
        # Who wants a blank of at least so many bytes before it places anything, and what to call then.
        self._asked: deque[tuple[int, Callable[[], None]]] = deque()
        # There while whoever asked for it is called.
        self._offered: Blank | None = None
        # A blank was given back, and nobody has looked since whether the disk counts as full for want of it.
        self._came_back = False
        # Nobody needed them after all; to be removed.
        self._surplus: list[Blank] = []
        self._bell = Bell()
        self._arrived = Bell()
        self._pause_s = RETRY_S_MIN
        self._running = False
        self._stopping = False

    def used(self, share_bytes: int, capacity: int) -> None:
        """The active segment is used so far; asks for the next one in time."""
        if share_bytes * AHEAD_SHARE >= capacity:
            self.want()

    def want(self) -> None:
        """Somebody is about to write: so it is known at once if there is no room for a segment."""
        if not self._demand and self._spare is None:
            self._demand = True
            self._bell.ring()

    def poke(self) -> None:
        """Something was removed: try again now if the disk was full."""
        if self.full:
            self._bell.ring()

    def stop(self) -> None:
        """End ``run``; a waiting ``take`` makes its segment itself, once."""
        self._stopping = True
        self._bell.ring()
        self._arrived.ring()

    # -- the task that prepares ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep a spare and a reserve at hand until ``stop``."""
        self._running = True
        try:
            await self.before()
            while not self._stopping:
                if self._surplus:
                    await self._env.threads.run(self._remove, self._surplus.pop(), pool=POOL)
                    continue
                if self._asked and (self.full or self._complete()):
                    await self._answer()
                    continue
                if self._complete():
                    if self._came_back:
                        # What was missing is there, though nothing had to be made for that.
                        self._came_back = False
                        self._set_full(False)
                    self.settled.set()
                    await self._bell.wait()
                    continue
                try:
                    await self._make_next()
                except NoRoomError:
                    self._set_full(True)
                    self.settled.set()
                    if self._spare is not None and not self._guarded:
                        # It has the room of what a full disk is drained with.
                        self._surplus.append(self._spare)
                        self._spare, self._demand = None, True
                        continue
                    with trio.move_on_after(self._pause_s):
                        await self._bell.wait()
                    self._pause_s = min(self._pause_s * 2, RETRY_S_MAX)
                else:
                    if self.full and self._complete():
                        self._pause_s = RETRY_S_MIN
                        self._set_full(False)
                    self._arrived.ring()
        finally:
            self._running = False
            self.settled.set()
            self._arrived.ring()
            while self._asked:
                self._asked.popleft()[1]()

    def _complete(self) -> bool:
        wanted = self._spare is not None or not (self._demand or self.full)
        return wanted and self._guarded

    @property
    def _guarded(self) -> bool:
        """Whether a full disk would find what it is to be drained with."""
        reserve = self._reserve
        whole = reserve is not None and reserve.capacity >= self.reserve_bytes
        return whole and (self._ballast > 0 or self._lent)

    @property
    def spare_bytes(self) -> int:
        """What the next segment holds, if it is there to stay; else 0."""
        return self._spare.capacity if self._spare is not None and self._guarded else 0

    @property
    def pressed(self) -> bool:
        """Whether the disk is full, and less is left to go on with than there should be."""
        return self.full and not self._guarded

    async def _make_next(self) -> None:
        """Make what is missing most: what keeps a full disk going, then what is waited for.

        Raises: NoRoomError if it could not be made, or not whole.
        """
        if not (self._ballast or self._lent):
            # Without it no segment could be put to use, however many there are.
            await self._make_ballast()
        elif self._demand and self._spare is None and not self.full:
            self._keep(await self._blank(self._segment_bytes))
        elif self._reserve is None:
            self._reserve = await self._make_reserve()
            if self._reserve.capacity < self.reserve_bytes:
                self._arrived.ring()
                raise NoRoomError("no room for the whole reserve")
        elif not self._guarded:
            whole = await self._blank(self.reserve_bytes)
            small, self._reserve = self._reserve, whole
            # Whoever writes may have taken the small one meanwhile.
            if small is not None:
                self._surplus.append(small)
        else:
            self._keep(await self._blank(self._segment_bytes))
        if self._spare is not None:
            self._demand = False

    async def _make_reserve(self) -> Blank:
        """The reserve, as large as there is room for; the most of the ballast makes some."""
        capacity = self.reserve_bytes
        while True:
            try:
                return await self._blank(capacity)
            except NoRoomError:
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
            except NoRoomError:
                if size == BALLAST_BYTES_MIN:
                    raise
                size = BALLAST_BYTES_MIN

    async def _remove_ballast(self) -> None:
        # At once: both whoever makes room and whoever writes a manifest may want to.
        self._ballast = 0
        path = f"{self._layout.journal}/{BALLAST}"
        await self._env.threads.run(self._env.disk.remove, path, pool=POOL)

    async def lend_ballast(self) -> None:
        """Give the ballast up for what frees more; the next manifest that is written has it made again."""
        if self._ballast:
            self._lent = True
            await self._remove_ballast()

    @property
    def reserve_bytes(self) -> int:
        """The size of the reserve."""
        return reserve_bytes(self._segment_bytes)

    async def _blank(self, capacity: int) -> Blank:
        number = self.next_number
        self.next_number += 1
        return await self._env.threads.run(make_blank, self._env.disk, self._layout, number, capacity, pool=POOL)

    def _set_full(self, full: bool) -> None:
        if self.full != full:
            self.full = full
            self._arrived.ring()
            if self.on_change is not None:
                self.on_change()

    # -- who needs room ------------------------------------------------------------------------------------------

    async def take(self, capacity: int) -> Blank:
        """A blank of at least ``capacity`` bytes; waits on a full disk.

        Raises:
            NoRoomError: the disk is full, and this journal is being closed.
            OSError: the disk failed.
        """
        while True:
            blank = self._at_hand(capacity)
            if blank is not None:
                return blank
            if capacity > self._segment_bytes or not self._running:
                try:
                    return await self._blank(max(capacity, self._segment_bytes))
                except NoRoomError:
                    if not self._running:
                        raise
                    self._set_full(True)
                    self._bell.ring()
                with trio.move_on_after(RETRY_S_MAX):
                    await self._arrived.wait()
            else:
                self._demand = True
                self._bell.ring()
                await self._arrived.wait()

    def _at_hand(self, capacity: int) -> Blank | None:
        if self._spare is not None and self._spare.capacity >= capacity:
            blank, self._spare = self._spare, None
            return blank
        spent = self.full or not self._running
        if spent and self._reserve is not None and self._reserve.capacity >= capacity:
            blank, self._reserve = self._reserve, None
            return blank
        return None

    # -- who wants to know beforehand ----------------------------------------------------------------------------

    def has(self, capacity: int) -> bool:
        """Whether ``claim`` would give something; a journal that does not run yet makes what it needs itself."""
        return not self._running or any(
            blank is not None and blank.capacity >= capacity for blank in (self._offered, self._spare)
        )

    def ask(self, capacity: int, then: Callable[[], None]) -> bool:
        """Have a blank made; ``then`` is called once, in this task, when it is there or the disk has no room for it.

        It is there as long as that call lasts.  Returns True, and calls nobody, if there is nothing to wait for.
        """
        if self.full or self.has(capacity):
            return True
        self._asked.append((capacity, then))
        self._bell.ring()
        return False

    async def _answer(self) -> None:
        capacity, then = self._asked[0]
        if not self.full and not self.has(capacity):
            # Behind what is larger than a segment the acknowledgements of it find room.
            behind = self.reserve_bytes if capacity > self._segment_bytes else 0
            try:
                self._offered = await self._blank(max(capacity + behind, self._segment_bytes))
            except NoRoomError:
                if capacity <= self._segment_bytes:
                    self._set_full(True)
        self._asked.popleft()
        then()
        blank, self._offered = self._offered, None
        if blank is not None:
            self._keep(blank)

    def claim(self, capacity: int) -> Blank | None:
        """A blank for what is being placed, if there is one; whoever has it writes to it or gives it back."""
        if self._offered is not None and self._offered.capacity >= capacity:
            blank, self._offered = self._offered, None
            return blank
        if self._spare is not None and self._spare.capacity >= capacity:
            blank, self._spare = self._spare, None
            self._demand = True
            self._bell.ring()
            return blank
        return None

    def give_back(self, batch: Gathered) -> None:
        """What was claimed for a batch was not needed after all."""
        blank, batch.blank = batch.blank, None
        if blank is not None:
            self._keep(blank)
            # Also if the disk is not known to be full yet: that may be found out while this was claimed.
            self._came_back = True
            self._bell.ring()

    def _keep(self, blank: Blank) -> None:
        """It is the spare, unless another one was given back while it was made."""
        if self._spare is None:
            self._spare, self._demand = blank, False
            self._arrived.ring()
        else:
            self._surplus.append(blank)
            self._bell.ring()

    def _remove(self, blank: Blank) -> None:
        blank.file.close()
        self._env.disk.remove(self._layout.segment(blank.number))

    async def wait_for_manifest_room(self) -> None:
        """Give the ballast up, or wait a little: a manifest found no room.

        Raises: NoRoomError if there is nothing to give up and this journal is being closed.
        """
        if self._ballast:
            await self.lend_ballast()
            return
        if self._stopping or not self._running:
            raise NoRoomError("no room for a manifest")
        self._set_full(True)
        await trio.sleep(self._pause_s)

    def manifest_written(self) -> None:
        """The manifest found room."""
        if self._lent:
            self._lent = False
            self._bell.ring()

    def leave(self) -> None:
        """Close and remove what was made ahead.  Blocks.  Raises: OSError."""
        for blank in (self._spare, self._reserve, *self._surplus):
            if blank is not None:
                self._remove(blank)
        self._surplus = []
        if self._ballast:
            self._env.disk.remove(f"{self._layout.journal}/{BALLAST}")
        self._spare = self._reserve = None
        self._ballast = 0

    def close(self) -> None:
        """Close the files only: the disk has failed."""
        for blank in (self._spare, self._reserve, *self._surplus):
            if blank is not None:
                blank.file.close()


def _make_ballast(disk: Disk, path: str, size: int) -> None:
    try:
        write_new(disk, path, bytes(size))
    except OSError as error:
        if not is_full(error):
            raise
        with contextlib.suppress(FileNotFoundError):
            disk.remove(path)
        raise NoRoomError(error.errno, error.strerror, path) from error
