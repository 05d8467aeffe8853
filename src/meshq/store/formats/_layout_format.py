"""The paths of a store's files, the format versions that this code reads, and the refusal of newer ones.

::

    DIR/lock                            locked while the store is open
    DIR/bindings/identity-0, -1         who the node is; two copies, written once
    DIR/journal/manifest-0, -1          the list of segments; the higher generation wins
    DIR/journal/<16 hex digits>.seg     segments
    DIR/journal/<16 hex digits>.idx     the index of such a segment; may be missing
    DIR/large/<32 hex digits>.body      bodies of large messages
    DIR/large/<32 hex digits>.part      a body that is still being received
    DIR/paging/<16 hex digits>.page     bytes of one life, removed by the next
    DIR/places-0, -1                    the directories of parts that lie elsewhere; two copies
    DIR/**/<name>.tmp                   unfinished; ignored

A part that lies elsewhere has what is in its directory here, and a ``lock`` of its own.
"""

from __future__ import annotations

from typing import Final

import attrs

from meshq.directories import StoreDirectories
from meshq.errors import SettingsError
from meshq.store.formats._keyring_format import Keyring

#: The newest version that this code reads.
FORMAT_VERSION: Final = 2
#: The version that stands in the header of a file, so that older code reads what it can: only what is encrypted is 2.
PLAIN_VERSION: Final = 1
ENCRYPTED_VERSION: Final = 2

SEGMENT_SUFFIX: Final = ".seg"
INDEX_SUFFIX: Final = ".idx"
TEMPORARY_SUFFIX: Final = ".tmp"
#: Space kept for a manifest on a full disk: without it nothing could be reclaimed there.
BALLAST: Final = "ballast"
#: The lock file in each directory of a store.
LOCK: Final = "lock"


def refuse_newer(file: str, version: int) -> None:
    """Raise ``SettingsError`` if a file is of a version that this code does not know."""
    if version > FORMAT_VERSION:
        raise SettingsError(
            "data_dir",
            file,
            f"stores of format version {FORMAT_VERSION} or older; this file has version {version}",
        )


@attrs.frozen
class Layout:
    """The paths of one store, and the keys of its files."""

    root: str
    keyring: Keyring = attrs.field(factory=Keyring, repr=False, eq=False)
    #: The parts that lie elsewhere.
    directories: StoreDirectories = attrs.field(factory=StoreDirectories)

    @property
    def journal(self) -> str:
        """The directory of segments and manifests."""
        return self.directories.journal or f"{self.root}/journal"

    @property
    def bindings(self) -> str:
        """The directory of the identity."""
        return self.directories.bindings or f"{self.root}/bindings"

    @property
    def paging(self) -> str:
        """The directory of pages."""
        return self.directories.paging or f"{self.root}/paging"

    @property
    def large(self) -> str:
        """The directory of large bodies."""
        return self.directories.large_messages or f"{self.root}/large"

    @property
    def parts(self) -> tuple[str, ...]:
        """The directories of all parts, wherever they lie."""
        return (self.journal, self.bindings, self.paging, self.large)

    @property
    def lock(self) -> str:
        """The lock file."""
        return f"{self.root}/{LOCK}"

    def segment(self, number: int) -> str:
        """Return the path of segment ``number``."""
        return f"{self.journal}/{number:016x}{SEGMENT_SUFFIX}"

    def index(self, number: int) -> str:
        """Return the path of the index of segment ``number``."""
        return f"{self.journal}/{number:016x}{INDEX_SUFFIX}"


def segment_number(name: str) -> int | None:
    """Return the number in the name of a segment's file; None for any other name."""
    return _number(name, SEGMENT_SUFFIX)


def index_number(name: str) -> int | None:
    """Return the segment number in the name of an index; None for any other name."""
    return _number(name, INDEX_SUFFIX)


def _number(name: str, suffix: str) -> int | None:
    digits = name.removesuffix(suffix)
    if len(name) != len(digits) + len(suffix) or len(digits) != 16:
        return None
    if any(digit not in "0123456789abcdef" for digit in digits):
        return None
    return int(digits, 16)
