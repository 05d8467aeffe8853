"""The task of a pool: it lists its targets, and probes each of them in every period."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from meshq.abc import LocalBroker
from meshq.client import ProbedBroker, same_node
from meshq.errors import MeshqError, NotActiveError
from meshq.lb import PoolMachine, TargetAnswer
from meshq.lb.balancer._target_source import ListedTarget, PoolSettings, TargetSource

#: Seconds after which the list of targets is looked at again: those that have come are probed at once.
LOOK_S: Final = 1.0
#: The part of a period that a target has for its answer, so that each probe has ended when the next one begins.
_PATIENCE: Final = 0.9


class PoolWatch:
    """Keeps a pool as its source and its probes say.  ``changed``: called after each change of the pool."""

    def __init__(
        self, settings: PoolSettings, broker: LocalBroker, machine: PoolMachine, changed: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._source = TargetSource(settings, broker)
        self._machine = machine
        self._changed = changed
        # When each target is probed next.
        self._due: dict[str, float] = {}
        self._probing: dict[str, None] = {}

    async def run(self) -> None:
        """Probe until cancelled.

        Checkpoint: always.
        Cancellation: the probes that are under way are ended.
        """
        async with trio.open_nursery() as nursery:
            while True:
                now = trio.current_time()
                listed = self.look()
                self._due = {place: self._due.get(place, now) for place in listed}
                for place, target in listed.items():
                    if self._due[place] <= now:
                        self._due[place] = self._next(self._due[place], now)
                        if place not in self._probing:
                            self._probing[place] = None
                            nursery.start_soon(self._probe, target)
                await trio.sleep_until(min([now + LOOK_S, *self._due.values()]))

    def _next(self, due: float, now: float) -> float:
        """Return the time of the next probe.  Probes that were missed while the process stood still are left out."""
        period = self._settings.check_period
        return due + period if due + period > now else now + period

    def look(self) -> dict[str, ListedTarget]:
        """List the targets anew; return the targets to probe, by their places."""
        listed = {one.place: one for one in self._source.listed()}
        control, local = self._broker.control, ""
        if self._settings.local_target_enabled:
            local = self._source.own_place or f"inproc://{control.name}"
            listed.setdefault(local, ListedTarget(local, local))
        self._machine.replace(tuple(listed), local)
        if local:
            self._look_here(local)
        self._changed()
        return {place: listed[place] for place in self._machine.urls()}

    def _look_here(self, place: str) -> None:
        """See how the broker itself is, as a probe sees the others."""
        control = self._broker.control
        try:
            clients = self._broker.redirectors.clients()
        except NotActiveError as error:
            self._machine.failed(place, str(error))
            return
        answer = TargetAnswer(node_id=control.node_id.hex(), node_name=control.name, connections=clients)
        self._machine.answered(place, answer, trio.current_time())

    async def _probe(self, target: ListedTarget) -> None:
        began = trio.current_time()
        patience = self._settings.check_period * _PATIENCE
        found: ProbedBroker | None = None
        why = f"it has not answered within {patience:g} s"
        try:
            with trio.move_on_after(patience):
                found = await self._source.probe(target.dialed).ask()
        except MeshqError as error:
            why = "it is this broker itself" if same_node(error) else str(error)
        del self._probing[target.place]
        if found is None:
            self._machine.failed(target.place, why)
        else:
            answer = TargetAnswer(node_id=found.node_id.hex(), node_name=found.node_name, connections=found.connections)
            self._machine.answered(target.place, answer, began)
        self._changed()
