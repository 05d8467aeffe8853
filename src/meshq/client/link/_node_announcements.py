"""The announcements of a node over a link: says who the node is, when a plan says so."""

from __future__ import annotations

import trio

from meshq.client.link._announcement_plan import AnnouncementPlan
from meshq.client.session._cluster_link_channel import ClusterLinkChannel, PeerEvents
from meshq.concurrency import Wakeup


class NodeAnnouncements:
    """The announcements of a node over one link, as they are made.

    ``sent``: wakes the task that sends what was gathered.
    """

    def __init__(self, plan: AnnouncementPlan, channel: ClusterLinkChannel, events: PeerEvents, sent: Wakeup) -> None:
        self._plan = plan
        self._channel = channel
        self._events = events
        self._sent = sent

    async def run(self) -> None:
        """Announce the node after each opening of the link, until cancelled.

        Checkpoint: always.  Cancellation: nothing more is announced.
        """
        plan, channel = self._plan, self._channel
        while True:
            with trio.CancelScope(deadline=plan.next_at):
                await channel.opening.wait()
                plan.opened(trio.current_time())
            if plan.due(trio.current_time()):
                self.make()

    def make(self) -> None:
        """Announce the node now, if there is a connection."""
        about = self._events.announcement()
        if about is not None and self._channel.announce(about):
            self._sent.wake()
