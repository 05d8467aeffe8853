"""The channels of a session: numbers under which producers, consumers and links receive their frames."""

from __future__ import annotations

from typing import TypeVar

from meshq.client.calls._calls import Call, opening
from meshq.client.calls._pending_calls import PendingCalls
from meshq.client.calls._session_facts import SessionFacts
from meshq.wire import Frame, FrameType, Leave, violation

T = TypeVar("T")


class Channels:
    """The channels of one session, by number, with the owner of each."""

    __slots__ = ("_calls", "_facts", "_last", "_owners")

    def __init__(self, calls: PendingCalls, facts: SessionFacts) -> None:
        self._calls = calls
        self._facts = facts
        self._last = 0
        self._owners: dict[int, object] = {}

    def new(self, owner: object | None) -> int:
        """Make a channel; a channel without an owner receives no frames."""
        self._last += 1
        if owner is not None:
            self._owners[self._last] = owner
        return self._last

    def find(self, frame: Frame, kind: type[T]) -> T:
        """Find the owner of a frame's channel.

        Raises:
            RemoteProtocolError: the channel has no owner of this kind.
        """
        found = self._owners.get(frame.channel)
        if not isinstance(found, kind):
            raise violation("bad_channel", f"{frame.type.name} for channel {frame.channel}")
        return found

    def owner(self, channel: int) -> object | None:
        """Return the owner of a channel; None: the channel has left meanwhile."""
        return self._owners.get(channel)

    def lost(self, channel: int) -> None:
        """Note that the broker has no such channel any more: a further frame for it is a violation."""
        self._owners.pop(channel, None)

    def leave(self, channel: int, handed: int) -> Call:
        """Close a channel, on which frames may still arrive until the answer."""

        def left() -> None:
            self._owners.pop(channel, None)

        make = opening(FrameType.LEAVE, channel, Leave(handed=handed).encode())
        call = Call("leaving", make, self._facts.epoch, on_answer=left)
        self._calls.add(call)
        return call

    def renew(self) -> None:
        """Handle a new session: all channels are gone."""
        self._last = 0
        self._owners.clear()
