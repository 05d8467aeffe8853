"""A link from one node to another: a client's connection and session, with only the channel of a cluster link."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import trio

from meshq.abc import AddressCredits, Env
from meshq.client.calls._calls import Call
from meshq.client.link._announcement_plan import AnnouncementPlan
from meshq.client.link._change_log import ChangeLog
from meshq.client.link._connection import Connection
from meshq.client.link._connector import ClientTargets
from meshq.client.link._events import ConnectionEvent
from meshq.client.link._login import Login
from meshq.client.link._node_announcements import NodeAnnouncements
from meshq.client.session._cluster_link_channel import ForwardedRun, PeerEvents
from meshq.client.session._flusher import Flusher
from meshq.client.session._session import ClientSession
from meshq.client.settings._settings import ClientSettings
from meshq.concurrency import first_error
from meshq.errors import ClosedError, MeshqError
from meshq.wire import Call as WireCall
from meshq.wire import Frame, FrameType


class PeerLink:
    """Connects to another node and stays connected.  ``events`` hears what comes over the link, in its own turn.

    ``instance``: the life of the node that links.  ``window``: the bytes of messages that are under way at most, before
    one more goes out.  ``announcements``: when the node says once more who it is.
    """

    def __init__(
        self,
        targets: ClientTargets,
        settings: ClientSettings,
        env: Env,
        events: PeerEvents,
        *,
        label: str,
        instance: bytes,
        log: ChangeLog,
        window: float = math.inf,
        announcements: AnnouncementPlan,
    ) -> None:
        self._session = ClientSession(settings, trio.current_time, peer=events)
        assert self._session.cluster_link_channel is not None
        self._channel = self._session.cluster_link_channel
        self._channel.limit(window)
        self._flusher = Flusher(self._session)
        self._announcements = NodeAnnouncements(announcements, self._channel, events, self._session.wakeup)
        login = Login(env.entropy.token, settings.user, settings.password, role="peer", instance=instance)
        self._events = events
        self._connection = Connection(self._session, targets, settings, label, login, watcher=self, log=log)

    @property
    def connected(self) -> bool:
        """Whether there is a link now."""
        return self._session.stream.link is not None

    @property
    def peer(self) -> str:
        """The address of the other node, now or last."""
        return self._connection.peer

    @property
    def node_name(self) -> str:
        """The other node's name; empty before the first link."""
        return self._connection.node_name

    @property
    def unconfirmed(self) -> int:
        """Messages given and not known to be stored."""
        return self._channel.unconfirmed

    @property
    def credits(self) -> AddressCredits:
        """The credits of addresses at the other node."""
        return self._channel.credits

    def send(self, run: ForwardedRun) -> None:
        """Send a run, now or when the link is connected; its numbers are higher than all earlier ones of its branch."""
        self._channel.submit(run)
        self._session.stream.wake()

    def announce(self) -> None:
        """Say once more who this node is, if there is a connection."""
        self._announcements.make()

    def give_up(self, error: MeshqError) -> None:
        """Give the session up, and the connection if there is one: a call was not answered in time."""
        if self.connected:
            self._connection.give_up(error)
        else:
            self.parted("away", error)

    def happened(self, event: ConnectionEvent) -> None:
        """Take an event of the connection, which the other node's channel tells in its own way."""

    def parted(self, how: str, error: MeshqError) -> None:
        """Note that the other node has "left" or is "away"."""
        # What was on its way is given anew, in another session; nothing is kept for this one.
        self._session.abandon()
        self._channel.forget()
        self._events.parted(how, error)

    @property
    def heard_at(self) -> float:
        """When something was heard of the other node last; trio's clock."""
        return self._session.stream.heard_at

    async def ask(self, operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call an operation of the other node; return the named values of the answer.

        Checkpoint: always.  Cancellation: the call is withdrawn if it was not sent; otherwise its answer is dropped.
        Raises:
            MeshqError: the other node has refused, or the session ended before the answer.
        """
        flat = tuple(item for pair in arguments.items() for item in pair)
        header = WireCall(operation=operation, arguments=flat).encode()
        return await self._session.ask(
            Call(operation, lambda number: Frame(FrameType.CALL, first=number, header=header))
        )

    def connect_now(self) -> None:
        """Connect now, because the other node is known to be alive."""
        self._connection.connect_now()

    async def run(self) -> MeshqError | None:
        """Keep connected; returns why it can't be, when all attempts are used up.

        Checkpoint: always.
        Cancellation: the session is ended in peace if there is time for that, and otherwise lost; what was not
        confirmed may have been stored.
        """
        error: MeshqError | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._flusher.run)
                nursery.start_soon(self._announcements.run)
                nursery.start_soon(self._connection.keep_time)
                error = await self._connection.run()
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            only = first_error(group)
            raise only from only.__cause__
        finally:
            self._session.fail(error or ClosedError("the link is closed"))
        return error
