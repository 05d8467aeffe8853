"""Notifications of the queues of other nodes: the known bindings are compared with the bindings told before."""

from __future__ import annotations

from collections.abc import Iterable

from meshq.broker.catalog._distribution_plan import RemoteBinding
from meshq.broker.events._event_bus import EventBus
from meshq.notifications import BindingAdded, BindingRemoved


class BindingNews:
    """Tells of the bindings of a node that are new or gone; a binding is gone only after it was told of."""

    __slots__ = ("_event_bus", "_told")

    def __init__(self, event_bus: EventBus) -> None:
        self._event_bus = event_bus
        # By link, and by number there.
        self._told: dict[int, dict[int, RemoteBinding]] = {}

    def all(self, link: int, known: Iterable[RemoteBinding]) -> None:
        """Compare all bindings of a link with the bindings told before, and tell the differences."""
        now = {binding.number: binding for binding in known}
        for number in [number for number in self._told.get(link, ()) if number not in now]:
            self.one(link, number, None)
        for number, binding in now.items():
            self.one(link, number, binding)

    def one(self, link: int, number: int, now: RemoteBinding | None) -> None:
        """Compare one binding with the binding told before, and tell the difference; None: the binding is gone."""
        told = self._told.setdefault(link, {})
        before = told.pop(number, None)
        if before is not None and (now is None or _names(now) != _names(before)):
            self._event_bus.emit(
                BindingRemoved,
                node_id=before.path[0],
                node_name=before.node_name,
                address=before.address,
                queue=before.name,
            )
            before = None
        if now is None:
            return
        told[number] = now
        if before is None:
            self._event_bus.emit(
                BindingAdded,
                node_id=now.path[0],
                node_name=now.node_name,
                address=now.address,
                queue=now.name,
                routing=now.routing,
                distance=len(now.path),
            )


def _names(binding: RemoteBinding) -> tuple[object, ...]:
    return binding.name, binding.address, binding.routing, binding.path
