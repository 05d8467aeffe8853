"""A broadcast group: announces from time to time how its broker is reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import trio

from meshq.abc import BroadcastEndpoint, Env, LocalBroker, NodeControl, Service
from meshq.discovery._announcement_sender import AnnouncementSender
from meshq.discovery._datagram_format import announced_connector
from meshq.discovery._settings import BroadcastSettings, key_of
from meshq.errors import SettingsError, UsageError
from meshq.loops import check_in_trio
from meshq.settings import Secret


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
        self._sender = AnnouncementSender(
            name, endpoint, period_s=self.settings.broadcast_period, key=key_of(self.settings.secret)
        )

    def __repr__(self) -> str:
        return f"<BroadcastGroup {self.name!r} {self.settings.endpoint} announced={self._sender.sequence}>"

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
            self._sender.datagram(control, self._urls(control))
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
        task_status.started()
        await self._sender.run(control, lambda: self._urls(control))

    def _urls(self, control: NodeControl) -> list[str]:
        return [control.connectors[name] for name in self.settings.connectors]
