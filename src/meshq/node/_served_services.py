"""The services of an active node, from the start to the end of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from meshq.abc import LocalBroker, Service
from meshq.errors import NotActiveError, NotFoundError, SettingsError
from meshq.node._served_service import ServedService
from meshq.statistics import BridgeStatistics


class ServedServices:
    """The services of one active life of a node.

    ``links``: the functions by which the core lists the bridges of services.
    """

    def __init__(self, links: list[Callable[[], Sequence[BridgeStatistics]]]) -> None:
        self._links = links
        #: The services as they see each other.
        self.all: list[Service] = []
        self._served: dict[Service, ServedService] = {}
        # Those that were removed and have not ended, by kind and name.
        self._going: dict[tuple[str, str], ServedService] = {}
        self._nursery: trio.Nursery | None = None
        self._broker: LocalBroker | None = None

    async def start(self, nursery: trio.Nursery, broker: LocalBroker) -> None:
        """Serve all services, one after the other, with tasks in ``nursery``.

        Checkpoint: always.
        Cancellation: the services end with the nursery.
        Raises:
            MeshqError: a service can't start.
        """
        self._nursery, self._broker = nursery, broker
        for service in tuple(self.all):
            await self._serve(service, nursery, broker)

    async def _serve(self, service: Service, nursery: trio.Nursery, broker: LocalBroker) -> None:
        served = self._served[service] = ServedService(service, broker)
        await nursery.start(served.run)

    def find(self, name: str, kind: str) -> Service:
        """Return the service of this name and kind.

        Raises:
            NotFoundError: the node has none, or has none any more.
        """
        known = [one for one in self.all if one.kind == kind]
        for one in known:
            if one.name == name:
                return one
        names = ", ".join(repr(one.name) for one in known) or "none"
        raise NotFoundError(f"there is no {kind.replace('_', ' ')} {name!r}; known: {names}")

    async def add(self, service: Service) -> None:
        """Serve one more service, until ``remove`` or the end of the node.

        Checkpoint: always.
        Cancellation: the service is served or not.
        Raises:
            SettingsError: there is one of this name already, or the service does not fit the node.
            NotActiveError: the node is ending.
        """
        nursery, broker = self._nursery, self._broker
        if nursery is None or broker is None:
            raise NotActiveError(f"{service.name!r} can't be added to a node that is not active")
        known = [*((one.kind, one.name) for one in self.all), *self._going]
        if (service.kind, service.name) in known:
            allowed = f"a {service.kind.replace('_', ' ')} with a name that the broker has not"
            raise SettingsError("name", service.name, allowed)
        service.check_services((*self.all, service))
        service.announce(broker.control)
        service.take_up(broker)
        self.all.append(service)
        self._links.append(service.bridges)
        try:
            await self._serve(service, nursery, broker)
        except BaseException:
            # Cancelled, or it can't start: nothing of it stays, unless it was removed meanwhile.
            if service in self.all:
                self._take_out(service)
            raise

    async def remove(self, service: Service) -> None:
        """End a service; the others see it no more.

        Checkpoint: always.
        Cancellation: it ends all the same, and is waited for.
        """
        served = self._take_out(service)
        going = self._going[(service.kind, service.name)] = served
        served.cancel()
        try:
            # One of its name must not begin while it ends.
            with trio.CancelScope(shield=True):
                await going.wait_ended()
        finally:
            del self._going[(service.kind, service.name)]
        await trio.lowlevel.checkpoint_if_cancelled()

    def _take_out(self, service: Service) -> ServedService:
        self.all.remove(service)
        self._links.remove(service.bridges)
        return self._served.pop(service)

    def cancel(self) -> None:
        """Tell all services to end, and take no more."""
        self._nursery = None
        for served in self._served.values():
            served.cancel()

    async def wait_ended(self) -> None:
        """Wait until all services have ended.

        Checkpoint: if one has not.
        Cancellation: they go on ending.
        """
        for served in tuple(self._served.values()):
            await served.wait_ended()
