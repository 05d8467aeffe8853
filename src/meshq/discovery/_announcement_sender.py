"""The sending of announcements: an endpoint hears from time to time how a broker is reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import trio

from meshq.abc import BroadcastEndpoint, NodeControl
from meshq.discovery._datagram_format import Announcement, ConnectorPair, announced_connector, encode_announcement
from meshq.errors import MeshqError, SettingsError, UsageError
from meshq.logs import Warnings

MS_PER_S = 1_000


class AnnouncementSender:
    """The announcements of a broker at one endpoint, numbered within one life of the broker.

    ``name``: the group, for warnings; ``key``: signs the announcements.
    """

    def __init__(self, name: str, endpoint: BroadcastEndpoint, *, period_s: float, key: bytes | None = None) -> None:
        self.name: str = name
        self._endpoint = endpoint
        self._period_s = period_s
        self._key = key
        self._warnings = Warnings("discovery", trio.current_time)
        #: The number of the last announcement.
        self.sequence: int = 0

    async def run(self, control: NodeControl, urls: Callable[[], Sequence[str]]) -> None:
        """Announce a broker at the places that ``urls`` returns, until cancelled.

        Checkpoint: always.
        Cancellation: nothing more is announced; others drop the node when it was silent for too long.
        """
        # A clock without a battery may be before 1970, which the format has no number for.
        began_ms = max(control.env.wall.now_ms(), 0)
        self.sequence = 0
        next_at = trio.current_time()
        while True:
            try:
                sender = await self._endpoint.open_sender(control.env)
                try:
                    while True:
                        self.sequence += 1
                        datagram = self.datagram(control, urls(), began_ms)
                        # Counted from the start, so that the time that sending takes does not add up.
                        next_at = max(next_at + self._period_s, trio.current_time())
                        await sender.broadcast(datagram)
                        await trio.sleep_until(next_at)
                finally:
                    sender.close()
            except (MeshqError, OSError) as error:
                text = f"the broadcast group {self.name} can't announce {control.name}: {error}"
                self._warnings.say("cannot_announce", text)
                next_at = max(next_at, trio.current_time() + self._period_s)
                await trio.sleep_until(next_at)

    def datagram(self, control: NodeControl, urls: Sequence[str], began_ms: int = 0) -> bytes:
        """Encode an announcement; behind the first connector is that of the node that would take over, if it has room.

        Raises:
            SettingsError: a place can't be announced.
            UsageError: all of them together don't fit into a datagram.
        """
        places = [announced_connector(url) for url in urls]
        backup = _backup(control)
        if backup:
            with suppress(UsageError):
                return self._encoded(control, began_ms, places, backup)
        return self._encoded(control, began_ms, places)

    def _encoded(self, control: NodeControl, began_ms: int, places: Sequence[str], backup: str = "") -> bytes:
        announcement = Announcement(
            node_id=bytes(control.node_id),
            instance=control.instance,
            began_ms=began_ms,
            sequence=max(self.sequence, 1),
            period_ms=max(round(self._period_s * MS_PER_S), 1),
            name=control.name,
            connectors=tuple(ConnectorPair(place, "" if at else backup) for at, place in enumerate(places)),
        )
        return encode_announcement(announcement, self._key)


def _backup(control: NodeControl) -> str:
    """Return where the node is reached that would take over; empty: there is none, or none that others can dial."""
    waiting = control.board.report.waiting
    with suppress(SettingsError):
        return announced_connector(waiting[0].url) if waiting else ""
    return ""
