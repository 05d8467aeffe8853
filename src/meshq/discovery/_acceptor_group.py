"""The acceptors of a broker that say by themselves where they are announced: ``tcp://...`` at ``multicast://default``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import trio

from meshq.abc import Env, LocalBroker, NodeControl, Service
from meshq.discovery._announcement_sender import AnnouncementSender
from meshq.discovery._endpoint_urls import announced_at
from meshq.endpoint import Endpoint, shown_options
from meshq.errors import SettingsError
from meshq.loops import check_in_trio
from meshq.settings import Acceptor


class AcceptorGroup(Service):
    """A service that announces acceptors of its broker at the place of a URL, with the ports that they really have.

    ``places``: the numbers of the acceptors among those of the broker.  At ``multicast://NAME`` they are announced by
    DNS-SD, too, as ``zeroconf://NAME``, if the extra ``zeroconf`` is installed.

    Raises:
        SettingsError: the URL names no place for announcements.
        UsageError: the package that the place needs is not installed.
    """

    kind: ClassVar[str] = "acceptor_group"

    def __init__(self, url: str, places: Iterable[int]) -> None:
        self.name = url
        self._places = tuple(places)
        try:
            where = announced_at(url)
        except SettingsError as error:
            allowed = error.allowed if error.setting == "discovery" else f"{error.setting} as {error.allowed}"
            raise SettingsError("discovery", url, allowed, shown=repr(shown_options(url))) from error
        self._senders = [AnnouncementSender(url, endpoint, period_s=where.period_s) for endpoint in where.endpoints]

    def __repr__(self) -> str:
        return f"<AcceptorGroup {self.name!r} acceptors={len(self._places)}>"

    def wrong_connectors(self, connectors: Mapping[str, str], env: Env) -> list[SettingsError]:
        """Return nothing: the acceptors were looked at when the broker was built."""
        return []

    def announce(self, control: NodeControl) -> None:
        """Do nothing: the ports are not known before the broker listens."""

    async def serve(
        self, broker: LocalBroker, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Announce the acceptors until cancelled.

        Checkpoint: always.
        Cancellation: nothing more is announced; others drop the node when it was silent for too long.
        """
        check_in_trio("Broker")
        control = broker.control
        async with trio.open_nursery() as nursery:
            for sender in self._senders:
                nursery.start_soon(sender.run, control, lambda: self._urls(control))
            task_status.started()

    def _urls(self, control: NodeControl) -> list[str]:
        urls = control.acceptors()
        return [urls[place] for place in self._places]


def acceptor_groups(acceptors: Sequence[Acceptor]) -> list[AcceptorGroup]:
    """Return the groups of acceptors that are announced at one place each.

    Raises:
        SettingsError: an acceptor can't be announced, or its URL names no place for announcements.
        UsageError: the package that a place needs is not installed.
    """
    places: dict[str, list[int]] = {}
    for number, acceptor in enumerate(acceptors):
        if acceptor.discovery is not None:
            if Endpoint.parse(acceptor.url).wildcard:
                allowed = "a host that other machines can dial, as discovery announces the acceptor"
                raise SettingsError("acceptor", acceptor.url, allowed)
            places.setdefault(acceptor.discovery, []).append(number)
    return [AcceptorGroup(url, numbers) for url, numbers in places.items()]
