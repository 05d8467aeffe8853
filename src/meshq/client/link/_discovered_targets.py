"""The targets of clients that discover brokers: the brokers that announce themselves, as a factory hears them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

import attrs
import trio

from meshq.abc import Env, TopologySource
from meshq.client.link._announced_plan import AnnouncedPlaces, InitialWait, PlaceRules
from meshq.client.settings._settings import ClientSettings
from meshq.concurrency import ChangeSignal
from meshq.discovery import DiscoveryListener, DiscoverySettings
from meshq.endpoint import Endpoint
from meshq.logs import Warnings

#: Of many reasons, an error shows so many.
REASONS_MAX: Final = 3


@attrs.frozen(eq=False)
class _Hearing:
    """The hearing of one run of trio, with a clock and tasks that no other run has."""

    listener: DiscoveryListener
    wait: InitialWait
    changed: ChangeSignal
    warnings: Warnings
    # One client's task listens for all of the run; when that client is closed, another one's takes over.
    turn: trio.Lock = attrs.field(factory=trio.Lock)


class DiscoveredTopology(TopologySource):
    """The brokers that announce themselves at an endpoint, for the clients of one factory.

    It listens as long as one of the clients runs, once for each run of trio: the clients of a factory for threads have
    a run each.  When nobody is heard any more, the last list holds: a network that carries no announcements may carry
    connections.
    """

    def __init__(
        self,
        heard_at: DiscoverySettings,
        settings: ClientSettings,
        env: Env,
        place_options: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._heard_at = heard_at
        self._settings = settings
        self._env = env
        self._rules = PlaceRules(tls=settings.tls is not None, insecure=settings.insecure, options=tuple(place_options))
        # By the root task of a run, and gone with it.
        self._hearings: WeakKeyDictionary[trio.lowlevel.Task, _Hearing] = WeakKeyDictionary()
        self._waited = False
        self._last: tuple[Endpoint, ...] = ()
        if trio.lowlevel.in_trio_run():
            # Made outside of trio, its time begins with its first use.
            self._hearing()

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the places of all known brokers; while no broker is known, the last known places."""
        heard = self._heard()
        for text in heard.refused:
            self._hearing().warnings.say("announced_node_not_dialed", f"{self._heard_at.name}: {text}", text)
        self._last = heard.dialed or self._last
        return self._last

    async def run(self) -> None:
        """Listen for a client, until cancelled.

        Checkpoint: always.
        Cancellation: the endpoint is closed, unless another client listens.
        """
        hearing = self._hearing()
        async with hearing.turn:
            await hearing.listener.run()

    async def wait(self) -> None:
        """Wait as long as the settings say before a client connects for the first time.

        Checkpoint: always.
        Cancellation: nothing has changed; the next connection waits.
        """
        hearing = self._hearing()
        used_at = trio.current_time()
        await trio.lowlevel.checkpoint()
        while True:
            until = hearing.wait.until(known=self._heard().brokers, used_at=used_at, waited=self._waited)
            if until <= trio.current_time():
                break
            with trio.move_on_at(until):
                await hearing.changed.wait()
        self._waited = True

    async def changed(self) -> None:
        """Wait for the next change of the announced brokers.

        Checkpoint: always.  Cancellation: nothing has changed.
        """
        await self._hearing().changed.wait()

    def why_none(self) -> str:
        """Why no broker is known, for errors."""
        name, trouble = self._heard_at.name, self._hearing().listener.trouble
        if trouble:
            return f"{name}: {trouble}"
        refused = self._heard().refused
        if refused:
            return f"{name}: no broker that may be dialed has announced itself: {', '.join(refused[:REASONS_MAX])}"
        return f"{name}: no broker has announced itself"

    def _heard(self) -> AnnouncedPlaces:
        nodes = self._hearing().listener.nodes()
        return self._rules.places(node.places for node in nodes)

    def _hearing(self) -> _Hearing:
        """Return the hearing of this run of trio."""
        root = trio.lowlevel.current_root_task()
        assert root is not None
        found = self._hearings.get(root)
        if found is None:
            changed, warnings = ChangeSignal(), Warnings("client", trio.current_time)
            listener = DiscoveryListener(self._heard_at, self._env, b"", warnings, changed)
            wanted, timeout = self._settings.initial_wait_for, self._settings.initial_wait_timeout
            wait = InitialWait(made_at=trio.current_time(), timeout=timeout, wanted=wanted)
            found = self._hearings[root] = _Hearing(listener, wait, changed, warnings)
        return found
