"""What the parts of an open journal share: where it is, what lives in it, which segments count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs
import trio

from meshq.abc import Env
from meshq.store._layout_format import Layout
from meshq.store._manifest_format import Manifest, SegmentEntry
from meshq.store._ping_pong_file import NoRoomError
from meshq.store._recovery import give_back, write_manifest
from meshq.store._segment_allocator import POOL, Room
from meshq.store._segment_index import remove_segment
from meshq.store._segment_usage_machine import Ledger

T = TypeVar("T")


@attrs.define(eq=False)
class Books:
    """The state of an open journal outside the batches under way."""

    env: Env
    layout: Layout
    ledger: Ledger
    manifest: Manifest
    room: Room
    #: Whoever changes the manifest holds this.
    turn: trio.Lock = attrs.field(factory=trio.Lock)
    #: Whoever removes segments holds this, and whoever writes beside one.
    files: trio.Lock = attrs.field(factory=trio.Lock)
    #: Called when another manifest counts.
    on_switch: Callable[[], None] | None = None

    def __attrs_post_init__(self) -> None:
        self.room.before = self.trim

    async def switch(self, *, without: Sequence[int] = (), entries: Sequence[SegmentEntry] = (), last: int) -> None:
        """Make the next manifest count; the caller holds ``turn``.  Raises: OSError."""
        manifest = self.manifest.changed(without=without, entries=entries, last=last)
        while True:
            try:
                await self.background(write_manifest, self.env.disk, self.layout, manifest)
            except NoRoomError:
                await self.room.wait_for_manifest_room()
            else:
                self.manifest = manifest
                self.room.manifest_written()
                if self.on_switch is not None:
                    self.on_switch()
                return

    async def background(self, function: Callable[..., T], *arguments: object) -> T:
        """Call in a thread that is not the journal's."""
        return await self.env.threads.run(function, *arguments, pool=POOL)

    async def trim(self) -> None:
        """Give back what lies behind the seals of an earlier life.  Raises: OSError."""
        async with self.files:
            sealed = [entry for entry in self.manifest.entries if entry.sealed]
            await self.background(give_back, self.env.disk, self.layout, sealed)

    async def unlink(self, numbers: Sequence[int]) -> None:
        """Remove the files of segments that no manifest names.  Raises: OSError."""
        async with self.files:
            for number in numbers:
                await self.background(remove_segment, self.env.disk, self.layout, number)
        self.room.poke()
