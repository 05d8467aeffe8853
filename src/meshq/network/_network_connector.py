"""A network connector: the links of a broker to others of its network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Unpack

import attrs
import trio

from meshq.abc import Env, LocalBroker, NodeControl, Service
from meshq.address import check_place
from meshq.client import Agent, ClientFactory, factory_of
from meshq.concurrency import ChangeSignal
from meshq.discovery import DiscoveryListener, DiscoverySettings
from meshq.errors import CallTimeoutError, NotActiveError, SettingsError
from meshq.logs import Warnings
from meshq.loops import check_in_trio
from meshq.network._demand_machine import NetworkSubscription, Reached, nearest
from meshq.network._kept_plan import KeptNames, place_of, places_of
from meshq.network._network_link import LinkOwner, NetworkLink
from meshq.network._settings import SHARED_SETTINGS, NetworkOptions, NetworkSettings
from meshq.settings import TLS, Secret, SSLContext, takes_settings
from meshq.statistics import BridgeStatistics

#: Characters of a name that stand in the logs of the other broker: what a client takes as its label.
_LABEL_CHARACTERS_MAX: Final = 200
#: Between two looks at what is kept for the links.
KEPT_LOOK_S: Final = 10.0


class NetworkConnector(Service):
    """A network connector, one of a broker's ``services``: forwards messages of queues and topics here to other brokers
    where consumers want them.

    ``uri``: where the other brokers are, each of which is linked: ``static:(url,url)``, in which ``failover:(url,url)``
    is one of several, or where they announce themselves: ``multicast://name``, ``udp://group:port``,
    ``zeroconf://name``; also as ``discovery:(...)``.  ``network_ttl``: how many brokers may forward a message
    on its way, and how far away consumers are seen.  ``duplex``: messages come from there, too, over the same
    connection.  ``conduit_subscriptions``: all consumers of a destination there are one network consumer here, without
    their filters.  ``decrease_network_consumer_priority``: consumers here come before those of one hop, and so on.
    ``suppress_duplicate_queue_subscriptions``: of two ways to a consumer the longer one is not used.
    ``dynamically_included``: destinations that are forwarded when they are wanted; none: all.  ``excluded``: those
    that never are.  ``statically_included``: those that are forwarded unasked.  ``prefetch``: messages that a network
    consumer has at most.  ``replay``: messages of queues also go to brokers where they were, if nobody here accepts
    them and somebody there does.

    The user there needs the permission to send, and for ``duplex`` those to consume and to manage.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    kind: ClassVar[str] = "network_connector"

    @takes_settings(NetworkSettings)
    def __init__(
        self,
        name: str,
        uri: str,
        *,
        user: str | None = None,
        password: str | Secret | None = None,
        tls: TLS | SSLContext | None = None,
        **settings: Unpack[NetworkOptions],
    ) -> None:
        known = [field.name for field in attrs.fields(NetworkSettings)]
        for key in settings:
            if key not in known:
                raise SettingsError(key, "***", f"one of {', '.join(known)}, user, password, tls")
        self.settings: NetworkSettings = NetworkSettings(name=name, uri=uri, **settings)
        self.name = name
        secret = Secret(password) if password is not None else None
        #: The keywords ``user``, ``password`` and ``tls``, as they were given.
        self.login: dict[str, Any] = {"user": user, "password": secret, "tls": tls}
        self._warnings = Warnings("network", trio.current_time)
        self._changed = ChangeSignal()
        self._links: list[NetworkLink] = []
        # The places of its links; None: they come and go.
        self._places: list[str] | None = None
        self._broker: LocalBroker | None = None

    def __repr__(self) -> str:
        linked = sum(link.state == "linked" for link in self._links)
        return f"<NetworkConnector {self.name!r} {linked} of {len(self._links) or len(self.settings.urls)} linked>"

    # -- the service

    def wrong_connectors(self, connectors: Mapping[str, str], env: Env) -> list[SettingsError]:
        """Return the errors of the URLs that can't be dialed."""
        errors = []
        for url in self.settings.urls:
            try:
                self._factory(url, env)
            except SettingsError as error:
                errors.append(error)
        return errors

    def announce(self, control: NodeControl) -> None:
        """Check the URLs.

        Raises:
            SettingsError: one of them can't be dialed.
        """
        for error in self.wrong_connectors(control.connectors, control.env):
            raise error

    def _factory(self, url: str, env: Env) -> ClientFactory:
        given = {name: value for name, value in self.login.items() if value is not None}
        label = self.name[:_LABEL_CHARACTERS_MAX]
        return factory_of(url, "uri", env=env, client_id=label, **given, **self.settings.client())

    async def serve(
        self, broker: LocalBroker, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep the links, until cancelled.

        Checkpoint: always.
        Cancellation: what was received and is not confirmed by another broker goes back to its queue.
        Raises:
            SettingsError: another broker has it.
        """
        check_in_trio("Broker")
        if self._broker is not None:
            allowed = f"one that no broker has: this one is served by {self._broker.control.name!r}"
            raise SettingsError("connector", self, allowed)
        self._broker = broker
        agent = self.settings.agent
        urls = agent.urls
        labels = [self.name] if len(urls) == 1 else [f"{self.name}/{number}" for number in range(1, len(urls) + 1)]
        # Where brokers are found, their places come and go.
        self._places = places_of(urls) if agent.heard_at is None else None
        each = zip(urls, labels, places_of(urls), strict=True)
        self._links = [self._link(url, label, broker, place=place) for url, label, place in each]
        self._hint(broker)
        broker.demand.note_connector(self.name, self.settings.shared)
        try:
            async with trio.open_nursery() as nursery:
                for link in self._links:
                    nursery.start_soon(link.run)
                nursery.start_soon(self._look_at_kept)
                task_status.started()
                if agent.heard_at is not None:
                    await self._discover(agent, agent.heard_at, nursery)
                await trio.sleep_forever()
        finally:
            broker.demand.note_connector(self.name, None)
            self._broker = None
            self._changed.tell()

    async def _look_at_kept(self) -> None:
        """Look every few seconds how many messages the links keep."""
        while True:
            for link in self._links:
                link.look_at_kept()
            await trio.sleep(KEPT_LOOK_S)

    async def _discover(self, agent: Agent, heard_at: DiscoverySettings, nursery: trio.Nursery) -> None:
        """Keep a link to each broker that announces itself, except to this broker."""
        broker = self._broker
        assert broker is not None
        control = broker.control
        listener = DiscoveryListener(heard_at, control.env, control.node_id, self._warnings, self._changed)
        nursery.start_soon(listener.run)
        tls = self.login["tls"] is not None
        links: dict[NetworkLink, trio.CancelScope] = {}
        while True:
            urls, refused = agent.urls_at([node.places for node in listener.nodes()], tls=tls)
            for text in refused:
                self._warnings.say("network_broker_not_dialed", f"{self.name}: {text}", text)
            kept = {link.url for link in links}
            for link in [link for link in links if link.url not in urls and link.state != "linked"]:
                # A link that stands stays: a network that carries no announcements may carry connections.
                links.pop(link).cancel()
                self._links.remove(link)
                self._demand_changed()
            for url in urls:
                if url not in kept:
                    place = place_of(url)
                    link = self._link(url, f"{self.name}/{place}", broker, place=place)
                    links[link] = trio.CancelScope()
                    self._links.append(link)
                    nursery.start_soon(_run, link, links[link])
            await self._changed.wait()

    def _hint(self, broker: LocalBroker) -> None:
        """Warn if this connector lacks a setting that belongs on all connectors, and that another one here has."""
        for name in SHARED_SETTINGS:
            having = [
                one.name for one in broker.services if isinstance(one, NetworkConnector) and getattr(one.settings, name)
            ]
            if having and not getattr(self.settings, name):
                text = f"{name} is set for {having[0]!r} and not for {self.name!r}: the shortest way may not be found"
                self._warnings.say("network_settings_differ", text, name)
        control = broker.control
        stays = control.data_dir is not None or control.wanted_id is not None
        if self.settings.suppress_duplicate_queue_subscriptions and not stays:
            text = (
                f"suppress_duplicate_queue_subscriptions of {self.name!r} needs an id that stays, and {control.name!r} "
                "is in memory only: give it a node_id, or each start makes another one"
            )
            self._warnings.say("network_id_changes", text, self.name)

    def _link(self, url: str, label: str, broker: LocalBroker, *, place: str) -> NetworkLink:
        owner = LinkOwner(
            kept=KeptNames(self.name, place, broker.control.node_id.hex(), self._places),
            factory=partial(self._factory, url, broker.control.env),
            warn=self._warnings.say,
            changed=self._changed.tell,
            demand_changed=self._demand_changed,
        )
        return NetworkLink(url, label, self.settings, broker, owner)

    def _demand_changed(self) -> None:
        """Have all connectors of the broker compare: a link may leave out consumers that are nearer by another link."""
        broker = self._broker
        connectors = [one for one in broker.services if isinstance(one, NetworkConnector)] if broker is not None else []
        reached = nearest(link.table for connector in connectors for link in connector._links)
        for connector in connectors:
            connector._compare(reached)

    def _compare(self, reached: Reached) -> None:
        for link in self._links:
            if link.forward is not None:
                link.forward.compare(reached)
        self._changed.tell()

    # -- what a program sees

    def bridges(self) -> Sequence[BridgeStatistics]:
        """Return the state and the counters of each link."""
        return [link.statistics() for link in self._links]

    def subscriptions(self) -> tuple[NetworkSubscription, ...]:
        """Return the demand at the other brokers that this connector satisfies."""
        return tuple(one for link in self._links for one in link.table.subscriptions)

    async def wait_for(
        self,
        *,
        bridges: int = 1,
        queue: str | None = None,
        consumers: int = 0,
        timeout: float = math.inf,  # noqa: ASYNC109
    ) -> None:
        """Return when so many links are up, and so many consumers of a queue are known behind them to which messages
        are forwarded; with 0 ``consumers`` when none is left.

        Checkpoint: always.
        Cancellation: nothing has changed.
        Raises:
            SettingsError: what is waited for is not allowed.
            CallTimeoutError: the time is up; the error says how far it came.
            NotActiveError: the broker isn't active, or the connector was removed.
        """
        check_in_trio("Broker")
        for name, value in (("bridges", bridges), ("consumers", consumers)):
            if type(value) is not int or value < 0:
                raise SettingsError(name, value, "a whole number from 0")
        if queue is not None:
            check_place("queue", queue)
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(timeout):
            while not self._met(bridges, queue, consumers):
                await self._changed.wait()
        if not self._met(bridges, queue, consumers):
            linked, found = self._found(queue)
            known = f", {found} of {consumers} consumers of {queue!r}" if queue is not None else ""
            causes = "".join(
                f"; {one.name} is {one.state}: {one.last_error}"
                for one in self.bridges()
                if one.state != "linked" and one.last_error
            )
            text = f"{linked} of {bridges} links{known} after {timeout} s{causes}"
            raise CallTimeoutError(text, outcome="not_done") from TimeoutError(f"waited {timeout:g} s for a change")

    def _met(self, bridges: int, queue: str | None, consumers: int) -> bool:
        linked, found = self._found(queue)
        return linked >= bridges and (queue is None or (found >= consumers if consumers else not found))

    def _found(self, queue: str | None) -> tuple[int, int]:
        """Return how many links are up, and how many consumers of a queue have a network consumer here."""
        if self._broker is None:
            raise NotActiveError(f"the network connector {self.name!r} was removed, or its broker is not active")
        linked = [link for link in self._links if link.state == "linked"]
        found = 0
        for link in self._links:
            forwarded = {one.destination.address for one in link.forward.open} if link.forward is not None else set()
            if queue in forwarded:
                found += sum(one.consumers for one in link.table.subscriptions if one.address == queue) or 1
        return len(linked), found


async def _run(link: NetworkLink, scope: trio.CancelScope) -> None:
    with scope:
        await link.run()
