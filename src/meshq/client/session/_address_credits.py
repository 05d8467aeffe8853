"""The credits of addresses at the other node of a link, as that node tells them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshq import limits
from meshq.abc import AddressCredits
from meshq.wire import AddressCredit, BranchChange, Frame, FrameType, header_of, violation


class ToldCredits(AddressCredits):
    """The credits of one link in one session, and the marks of its branches."""

    __slots__ = ("_granted", "_known", "_marks")

    def __init__(self) -> None:
        self._marks: dict[str, int] = {}
        # By address: the number of the credit, and how many messages may be sent in all.
        self._known: dict[str, tuple[int, int]] = {}
        self._granted: Callable[[int, str, int], int] | None = None

    @property
    def marks(self) -> Mapping[str, int]:
        """The marks of the branches when the link was opened."""
        return self._marks

    def watch(self, granted: Callable[[int, str, int], int]) -> None:
        """Call ``granted`` with each credit, now and when it is told."""
        self._granted = granted
        for address, (number, until) in self._known.items():
            granted(number, address, until)

    def branch(self, frame: Frame) -> None:
        """Take the mark of a branch that the link has.

        Raises:
            RemoteProtocolError: the frame can't be read, or is of one branch more than a link may have.
        """
        if len(self._marks) >= limits.LINK_BRANCHES_MAX:
            raise violation("bad_header", f"more than {limits.LINK_BRANCHES_MAX} branches of one link")
        self._marks[header_of(frame, BranchChange).address] = frame.first

    def told(self, frame: Frame) -> Frame | None:
        """Take the credit of an address; return the answer if some credit is asked back.

        Raises:
            RemoteProtocolError: the frame can't be read.
        """
        header = header_of(frame, AddressCredit)
        number, before = self._known.pop(header.address, (0, 0))
        if header.number:
            self._known[header.address] = header.number, frame.first
        kept = frame.first
        if self._granted is not None:
            kept = self._granted(header.number, header.address, frame.first)
        if header.number != number or frame.first >= before:
            return None
        return Frame(FrameType.ADDRESS_CREDIT, channel=frame.channel, first=kept, header=frame.header)

    def forget(self) -> None:
        """Drop the state of the session."""
        self._granted = None
        self._marks.clear()
        self._known.clear()
