"""The branches of the links that come in: how far the messages of single addresses are stored.

A link has one mark: everything up to a number is stored here.  An address that must wait, at the sender, would keep all
that comes behind it from being sent.  So its messages may go over a branch with a mark of its own: from the moment at
which the branch begins, the link's mark says nothing of them, and the mark of the branch says nothing of others.

The journal has a table of all branches in one record, which is written when a branch begins or ends, and at the head of
each segment.  What is placed behind that record is there only if the record is, so that no message that has overtaken
another one is stored without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from meshq import limits
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.records import BRANCHES, BranchesRecord, BranchMark, encode_branches
from meshq.ids import IDENTITY_BYTES
from meshq.wire import violation

#: How the names of branches begin, and no link's; a link that is named at random has this once in 2**48 times.
_PREFIX: Final = b"branch"


def branch_name(link: bytes, address: str) -> bytes:
    """Return the name under which the journal knows the numbers of a branch."""
    return _PREFIX + hashlib.sha256(link + address.encode()).digest()[: IDENTITY_BYTES - len(_PREFIX)]


def is_branch_name(link: bytes) -> bool:
    """Whether the name of a link is one that only a branch may have."""
    return link.startswith(_PREFIX)


class LinkBranches:
    """The branches of all links, and the marks of links and branches."""

    __slots__ = ("_branches", "_recorded", "_release_queue", "marks")

    def __init__(self, release_queue: ReleaseQueue) -> None:
        self._release_queue = release_queue
        #: The highest number of each link and of each branch that is stored.
        self.marks: dict[bytes, int] = {}
        # By link and address: the name.
        self._branches: dict[bytes, dict[str, bytes]] = {}
        # Whether an older record may speak of branches, so that each segment has to say which there are.
        self._recorded = False

    def of(self, link: bytes) -> dict[str, int]:
        """Return the marks of a link's branches, by address."""
        return {address: self.marks[name] for address, name in self._branches.get(link, {}).items()}

    def name(self, link: bytes, address: str, *, branch: bool) -> bytes:
        """Return the name under which the numbers of a run are kept: of the link, or of a branch of the link.

        Raises:
            RemoteProtocolError: the link has no such branch.
        """
        if not branch:
            return link
        name = self._branches.get(link, {}).get(address)
        if name is None:
            raise violation("bad_header", f"a run for {address!r} over a branch that was not begun")
        return name

    def begin(self, link: bytes, address: str) -> None:
        """Begin a branch, if it has not begun: all of its messages up to the link's mark are stored, and no others.

        Raises:
            RemoteProtocolError: the link has the maximum of branches.
            AddressFullError, JournalBrokenError: nothing changed.
        """
        known = self._branches.get(link, {})
        if address in known:
            return
        if len(known) >= limits.LINK_BRANCHES_MAX:
            raise violation("bad_header", f"more than {limits.LINK_BRANCHES_MAX} branches of one link")
        mark, name = self.marks.get(link, 0), branch_name(link, address)
        self._write([*self._table(), BranchMark(link, address, mark)])
        self._branches.setdefault(link, {})[address] = name
        self.marks[name] = mark

    def end(self, link: bytes, address: str) -> None:
        """End a branch, all of whose messages are stored: the address goes with the others again.

        Raises:
            AddressFullError, JournalBrokenError: nothing changed.
        """
        name = self._branches.get(link, {}).get(address)
        if name is None:
            return
        self._write([one for one in self._table() if (one.link, one.address) != (link, address)])
        del self._branches[link][address], self.marks[name]
        if not self._branches[link]:
            del self._branches[link]

    def _table(self) -> list[BranchMark]:
        return [
            BranchMark(link, address, self.marks[name])
            for link, known in self._branches.items()
            for address, name in known.items()
        ]

    def _write(self, table: list[BranchMark]) -> None:
        self._recorded = True
        position = self._release_queue.write(BRANCHES, [encode_branches(BranchesRecord(tuple(table), False))])
        # Only a start from before the next checkpoint reads it, and gets deleted records from there on, too.
        self._release_queue.doom([position])

    def checkpoint(self) -> bytes | None:
        """Return the table as a segment begins with it; None: the journal has none."""
        return encode_branches(BranchesRecord(tuple(self._table()), True)) if self._recorded else None

    def restore(self, table: Iterable[BranchMark]) -> None:
        """Restore the branches of the last table in the journal."""
        self._recorded = True
        kept = {}
        for one in table:
            name = branch_name(one.link, one.address)
            self._branches.setdefault(one.link, {})[one.address] = name
            kept[name] = max(one.number, self.marks.get(name, 0))
        # Runs of branches that have ended since may still be there.
        for name in filter(is_branch_name, list(self.marks)):
            del self.marks[name]
        self.marks.update(kept)
