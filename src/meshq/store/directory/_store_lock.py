"""The lock of a store: of its own directory and of each part elsewhere; and the list of these directories on disk."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final, Literal

import attrs

from meshq.abc import Disk, File
from meshq.directories import PARTS, StoreDirectories
from meshq.errors import DamagedError, SettingsError
from meshq.store.directory._directories import make_directory, take_lock
from meshq.store.directory._ping_pong_file import PingPongFile, read_whole
from meshq.store.directory._relocation_plan import KEPT, check_relocation
from meshq.store.formats._keyring_format import Keyring
from meshq.store.formats._layout_format import LOCK, TEMPORARY_SUFFIX, Layout
from meshq.store.formats._ping_pong_format import PingPongCopy, decode_copy

PURPOSE: Final[Literal["places"]] = "places"


class StoreLock:
    """The locks that keep other processes out of a store."""

    def __init__(self) -> None:
        self._files: list[File] = []

    def take(self, disk: Disk, layout: Layout) -> None:
        """Lock the store, and check that its parts are in the directories that are written down.

        Raises:
            BusyError: the store or one of its directories is open, here or in another process.
            SettingsError: a part is in another directory.
            DamagedError: the list of directories can't be read.
            OSError: the disk failed.
        """
        self._files.append(take_lock(disk, layout))
        written, whole = _read(disk, layout)
        outside = layout.directories.outside
        if written is None and not outside:
            return
        old, new = _all(layout, written or {}), _all(layout, outside)
        check_separate(layout)
        # A new directory must be empty; a known one must hold the store's files.
        check_relocation(old, new, partial(_holds, disk), outside=frozenset(written or ()))
        for path in outside.values():
            make_directory(disk, path)
            self._files.append(take_lock(disk, Layout(path)))
            disk.sync_directory(path)
        kept = {part: path for part, path in outside.items() if part in KEPT}
        if written != kept or not whole:
            _write(disk, layout, kept)

    def close(self) -> None:
        """Unlock the store, its own directory last."""
        while self._files:
            self._files.pop().close()


def layout_of(disk: Disk, root: str, keyring: Keyring) -> Layout:
    """Return the layout of an existing store, with its parts as they are written down.  Raises: DamagedError,
    OSError.
    """
    layout = Layout(root.rstrip("/") or "/", keyring)
    try:
        written, _ = _read(disk, layout)
    except (FileNotFoundError, NotADirectoryError):
        written = None
    return attrs.evolve(layout, directories=StoreDirectories(**written)) if written else layout


def check_separate(layout: Layout) -> None:
    """Raise ``SettingsError`` if two parts have one directory, or a part has the store's own."""
    taken = {layout.root: "data_dir"}
    places = (layout.journal, layout.bindings, layout.paging, layout.large)
    for part, path in zip(PARTS, places, strict=True):
        if path in taken:
            raise SettingsError(f"directories.{part}", path, f"another one than that of {taken[path]}")
        taken[path] = part


def _all(layout: Layout, outside: dict[str, str]) -> dict[str, str]:
    there = Layout(layout.root, directories=StoreDirectories(**{part: outside.get(part) for part in KEPT}))
    return {"bindings": there.bindings, "journal": there.journal, "large_messages": there.large}


def _holds(disk: Disk, path: str) -> bool | None:
    try:
        names = disk.names(path)
    except FileNotFoundError:
        return None
    if not names:
        return None
    return names != [LOCK]


def _read(disk: Disk, layout: Layout) -> tuple[dict[str, str] | None, bool]:
    """Read the directories that are written down (None: none are), and whether both copies are good; either will do."""
    names = disk.names(layout.root)
    found: list[dict[str, str]] = []
    damage: DamagedError | None = None
    for slot in (0, 1):
        path = PingPongFile(disk, layout.root, PURPOSE).path(slot)
        if path.rpartition("/")[2] not in names:
            continue
        try:
            copy = decode_copy(PURPOSE.encode(), read_whole(disk, path), path)
            found.append(_decoded(copy, path))
        except DamagedError as error:
            damage = error
    if damage is not None and not found:
        raise damage
    return (found[0], len(found) == 2) if found else (None, True)


def _decoded(copy: PingPongCopy, path: str) -> dict[str, str]:
    try:
        found: Any = json.loads(copy.body)
    except ValueError:
        found = None
    if type(found) is not dict or not all(part in KEPT and type(at) is str for part, at in found.items()):
        raise DamagedError(path, 32, f"directories of {', '.join(KEPT)}", "something else")
    return found


def _write(disk: Disk, layout: Layout, places: dict[str, str]) -> None:
    pair = PingPongFile(disk, layout.root, PURPOSE)
    for name in disk.names(layout.root):
        if name.startswith(PURPOSE) and name.endswith(TEMPORARY_SUFFIX):
            disk.remove(f"{layout.root}/{name}")
    for generation in (2, 1):
        pair.write(PingPongCopy(generation, json.dumps(places, sort_keys=True).encode()))
