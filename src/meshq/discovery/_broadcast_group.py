"""A broadcast group: announces from time to time how its broker is reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import trio

from meshq.abc import BroadcastEndpoint, Env, LocalBroker, NodeControl, Service
from meshq.discovery._datagram_format import Announcement, ConnectorPair, announced_connector, encode_announcement
from meshq.discovery._settings import BroadcastSettings, key_of
from meshq.errors import MeshqError, SettingsError, UsageError
from meshq.logs import Warnings
from meshq.loops import check_in_trio
from meshq.settings import Secret

MS_PER_S = 1_000


class BroadcastGroup(Service):
    """A service that announces its broker when the broker is active, and again each ``broadcast_period`` seconds.

    ``endpoint``: the place where the broker is announced.  ``connectors``: names of the broker's connectors, whose
    schemes, hosts and ports are announced; options of their URLs are not.  ``secret``: signs the announcements; a
    discovery group with another secret refuses them.  A broker has any number of broadcast groups, each with a name
    of its own.

    While the endpoint can't be used, the broker goes on serving; a warning says so, and each period it is tried again.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    kind: ClassVar[str] = "broadcast_group"

    def __init__(
        self,
        name: str,
        endpoint: BroadcastEndpoint,
        *,
        connectors: Sequence[str],
        broadcast_period: float = 2.0,
        secret: str | Secret | None = None,
    ) -> None:
        self.settings: BroadcastSettings = BroadcastSettings(
            name=name, endpoint=endpoint, connectors=connectors, broadcast_period=broadcast_period, secret=secret
        )
        self.name = name
        self._key = key_of(self.settings.secret)
        self._sequence = 0
        self._warnings = Warnings("discovery", trio.current_time)

    def __repr__(self) -> str:
        return f"<BroadcastGroup {self.name!r} {self.settings.endpoint} announced={self._sequence}>"

    def wrong_connectors(self, connectors: Mapping[str, str], env: Env) -> list[SettingsError]:
        """Return the errors of the connectors: names that the broker doesn't have, URLs that can't be announced."""
        found = []
        for name in self.settings.connectors:
            if name not in connectors:
                known = ", ".join(sorted(connectors)) or "none"
                found.append(SettingsError("connectors", name, f"connectors of the broker: {known}"))
                continue
            try:
                announced_connector(connectors[name])
            except SettingsError as error:
                found.append(error)
        return found

    def announce(self, control: NodeControl) -> None:
        """Check the connectors, and the size of the announcements.

        Raises:
            SettingsError: a connector can't be announced, or all of them together don't fit into a datagram.
        """
        for error in self.wrong_connectors(control.connectors, control.env):
            raise error
        try:
            encode_announcement(self._announcement(control, 0), self._key)
        except UsageError as error:
            raise SettingsError("connectors", self.settings.connectors, str(error)) from error

    async def serve(
        self, broker: LocalBroker, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Announce the broker until cancelled.

        Checkpoint: always.
        Cancellation: nothing more is announced; others drop the node when it was silent for too long.
        """
        check_in_trio("Broker")
        control = broker.control
        began_ms = control.env.wall.now_ms()
        self._sequence = 0
        task_status.started()
        period_s, next_at = self.settings.broadcast_period, trio.current_time()
        while True:
            try:
                sender = await self.settings.endpoint.open_sender(control.env)
                try:
                    while True:
                        self._sequence += 1
                        announcement = self._announcement(control, began_ms)
                        # Counted from the start, so that the time that sending takes does not add up.
                        next_at = max(next_at + period_s, trio.current_time())
                        await sender.broadcast(encode_announcement(announcement, self._key))
                        await trio.sleep_until(next_at)
                finally:
                    sender.close()
            except (MeshqError, OSError) as error:
                text = f"the broadcast group {self.name} can't announce {control.name}: {error}"
                self._warnings.say("cannot_announce", text)
                next_at = max(next_at, trio.current_time() + period_s)
                await trio.sleep_until(next_at)

    def _announcement(self, control: NodeControl, began_ms: int) -> Announcement:
        return Announcement(
            node_id=bytes(control.node_id),
            instance=control.instance,
            began_ms=began_ms,
            sequence=max(self._sequence, 1),
            period_ms=max(round(self.settings.broadcast_period * MS_PER_S), 1),
            name=control.name,
            connectors=tuple(
                ConnectorPair(announced_connector(control.connectors[name])) for name in self.settings.connectors
            ),
        )
