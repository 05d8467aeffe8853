"""The identity of a store: sixteen random bytes for the node and for the journal, written once, in two copies."""

from __future__ import annotations

import struct
from typing import Final

import attrs

from meshq.abc import Disk, Entropy
from meshq.errors import DamagedError, SettingsError
from meshq.ids import IDENTITY_BYTES, NodeId
from meshq.store.directory._ping_pong_file import PingPongFile, read_whole
from meshq.store.formats._layout_format import LOCK, TEMPORARY_SUFFIX, Layout
from meshq.store.formats._ping_pong_format import PingPongCopy, decode_copy

PURPOSE: Final = "identity"
_BODY: Final = struct.Struct(f"<{IDENTITY_BYTES}s{IDENTITY_BYTES}s")


@attrs.frozen
class Identity:
    """The ids of the node and of the journal."""

    node_id: NodeId
    journal_id: bytes


def _read_copies(disk: Disk, layout: Layout) -> tuple[list[Identity], DamagedError | None]:
    names = disk.names(layout.bindings)
    pair = PingPongFile(disk, layout.bindings, PURPOSE)
    copies: list[Identity] = []
    damage: DamagedError | None = None
    for slot in (0, 1):
        path = pair.path(slot)
        if path.rpartition("/")[2] not in names:
            continue
        try:
            copy = decode_copy(PURPOSE.encode(), read_whole(disk, path), path)
            if len(copy.body) != _BODY.size:
                raise DamagedError(path, 12, f"a body of {_BODY.size} bytes", f"{len(copy.body)} bytes")
        except DamagedError as error:
            damage = error
        else:
            node_id, journal_id = _BODY.unpack(copy.body)
            copies.append(Identity(NodeId(node_id), journal_id))
    return copies, damage


def read_identity(disk: Disk, layout: Layout) -> Identity | None:
    """Read the identity of a store; None if the store has none yet.

    An identity never changes, so either copy will do.

    Raises: DamagedError (no good copy), SettingsError (a newer version), OSError.
    """
    copies, damage = _read_copies(disk, layout)
    if copies:
        return copies[0]
    if damage is not None:
        raise damage
    return None


def store_node_id(disk: Disk, root: str) -> NodeId | None:
    """Read the id of the node whose store is in a directory; None: it has none yet.

    Blocks.
    Raises: as ``read_identity``.
    """
    try:
        identity = read_identity(disk, Layout(root))
    except FileNotFoundError:
        return None
    return identity.node_id if identity is not None else None


def load_identity(disk: Disk, layout: Layout, entropy: Entropy, wanted: bytes | None, *, is_new: bool) -> Identity:
    """Read the identity of a store; make it first if the store is new.

    Raises: SettingsError if ``wanted`` is another node id than the store's; as ``read_identity``.
    """
    identity = read_identity(disk, layout)
    if identity is None:
        if not is_new:
            path = PingPongFile(disk, layout.bindings, PURPOSE).path(0)
            raise DamagedError(path, 0, "an identity, as there is a manifest", "no file")
        node_id = entropy.token(IDENTITY_BYTES) if wanted is None else wanted
        identity = Identity(NodeId(node_id), entropy.token(IDENTITY_BYTES))
        _write_copies(disk, layout, identity)
    if wanted is not None and identity.node_id != wanted:
        raise SettingsError("node_id", wanted.hex(), f"{identity.node_id}, the node whose store this is")
    return identity


def write_identity(disk: Disk, layout: Layout, identity: Identity) -> None:
    """Write the identity of a store that has none.  Raises: OSError."""
    _write_copies(disk, layout, identity)


def repair_identity(disk: Disk, layout: Layout, identity: Identity) -> None:
    """Write both copies again unless both are good and no unfinished file lies beside them.  Raises: OSError."""
    copies, _ = _read_copies(disk, layout)
    beside = [name for name in disk.names(layout.bindings) if name != LOCK]
    if copies != [identity, identity] or len(beside) != len(copies):
        _write_copies(disk, layout, identity)


def _write_copies(disk: Disk, layout: Layout, identity: Identity) -> None:
    pair = PingPongFile(disk, layout.bindings, PURPOSE)
    for name in disk.names(layout.bindings):
        if name.endswith(TEMPORARY_SUFFIX):
            disk.remove(f"{layout.bindings}/{name}")
    for generation in (2, 1):
        pair.write(PingPongCopy(generation, _BODY.pack(identity.node_id, identity.journal_id)))
