"""The link to the node at one connector, begun again whenever the other node has ended the link for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from meshq.abc import NodeControl
from meshq.client import AnnouncementPlan, ClientFactory, PeerLink
from meshq.cluster._peer import Peer
from meshq.cluster._peer_errors import CopiedStoreError, OlderNodeError, RedundantLinkError, UnreadyPeerError
from meshq.cluster._settings import ClusterSettings
from meshq.concurrency import ChangeSignal
from meshq.errors import AddressFullError, MeshqError


class FactoryMaker(Protocol):
    """Makes the client factory of a connector, with the settings of the connection."""

    def __call__(self, *, initial_connect_attempts: float = ...) -> ClientFactory:
        """Make a factory, with other settings where they are given."""


class LinkKeeper:
    """The keeper of the link to the node at one connector.

    ``static``: the settings name the connector; other connectors were announced.
    """

    def __init__(
        self,
        url: str,
        peer: Peer,
        *,
        static: bool,
        settings: ClusterSettings,
        factory: FactoryMaker,
        changed: ChangeSignal,
        warn: Callable[[str, str, str], None],
    ) -> None:
        self.url: str = url
        self.peer: Peer = peer
        self.static: bool = static
        self._settings = settings
        self._factory = factory
        self._changed = changed
        self._warn = warn
        self._scope = trio.CancelScope()

    def check(self) -> None:
        """Check that the connector can be dialed.  Raises: SettingsError."""
        self._factory()

    async def run(self, control: NodeControl) -> None:
        """Keep the link until ``forget``.

        Checkpoint: always.
        Cancellation: the link is closed; what waits for the other node stays in its queue.
        """
        with self._scope:
            await self._keep(control)

    def forget(self) -> None:
        """Give up the connector for good: its node is reached elsewhere, or nothing is left to do for the node."""
        self._scope.cancel()
        self.peer.retire()

    async def _keep(self, control: NodeControl) -> None:
        peer, settings = self.peer, self._settings
        factory = self._factory()
        while True:
            peer.link = factory.link(
                peer,
                label=control.name,
                instance=control.instance,
                announcements=AnnouncementPlan(settings.notification_attempts, settings.notification_interval),
                window=settings.producer_window_size,
            )
            error = await self._run(peer.link)
            peer.end()
            if error is None:
                return
            if error.refusal == "same_node":
                # Our own connector by another name, and nothing is wrong; or somebody has led us back to ourselves, who
                # may be gone later.
                await trio.sleep(settings.check_period)
                continue
            if isinstance(error, RedundantLinkError):
                # Another node may be there one day.
                with trio.move_on_after(settings.check_period):
                    while peer.spare:
                        await self._changed.wait()
                continue
            if isinstance(error, CopiedStoreError):
                # The next link begins its numbers anew; if the other node says the same again, it says so in vain.
                await peer.wait_for_call(settings.retry_interval)
                continue
            if isinstance(error, UnreadyPeerError):
                await trio.sleep(settings.max_retry_interval)
                continue
            if error.refusal is None and settings.gives_up:
                if peer.state != "down":
                    self._warn("peer_down", f"{peer.label} is given up: {error}", self.url)
                peer.forget(error)
                # It may come back: one look now and then, and at once when it links to us.
                factory = self._factory(initial_connect_attempts=1)
                await peer.wait_for_call(settings.check_period)
                continue
            peer.parted("away", error)
            self._warn("peer_lost", f"the link to {peer.label} ended: {error}", self.url)
            await peer.wait_for_call(settings.max_retry_interval)

    async def _run(self, link: PeerLink) -> MeshqError | None:
        try:
            return await link.run()
        except (CopiedStoreError, RedundantLinkError, UnreadyPeerError) as error:
            return error
        except OlderNodeError as error:
            # A newer version of the node may be there one day.
            error.refusal = "too_old"
            return error
        except AddressFullError as error:
            # There is no room for the definition of the store-and-forward queue; later there may be.
            error.refusal = "address_full"
            return error
