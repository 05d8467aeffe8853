"""A node that hands over: its links for that, and the drain that a broker's settings or its ``stop`` ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, cast

import trio

from meshq.abc import HAPolicy, LocalBroker, NodeControl, Service
from meshq.address import HANDOVER
from meshq.endpoint import Endpoint
from meshq.errors import MeshqError, NotActiveError, NotFoundError, SettingsError, UsageError
from meshq.ha import LiveOnly, ScaleDown
from meshq.logs import Warnings, logger
from meshq.node._settings import BrokerSettings, order_in
from meshq.statistics import BridgeStatistics

if TYPE_CHECKING:
    from meshq.cluster import ClusterConnection, ClusterSettings, Departure, Drain, HandoverLinks, NodeLogin

#: How the names of the store-and-forward queues of such links begin.
QUEUES = f"$meshq.cluster.{HANDOVER}."
#: Seconds for which a stop waits for a node that takes over, and for one that does not answer meanwhile.
LINKED_S: Final = 2.0
PATIENCE_S: Final = 30.0
#: Seconds after which a backup that found no target looks for one again.
AGAIN_S: Final = 5.0
#: The event of a warning that a node has nobody to hand over to: it is the last one of its group.
LAST_OF_GROUP: Final = "last_of_group"
_log = logger("node")


def clusters_of(settings: BrokerSettings) -> list[ClusterConnection]:
    """Return the cluster connections of a broker."""
    return [cast("ClusterConnection", one) for one in settings.services if one.kind == "cluster_connection"]


def departures_of(settings: BrokerSettings) -> list[Departure]:
    """Return the departures of a broker's cluster connections, as far as these are served."""
    return [one.departure for one in clusters_of(settings) if one.departure is not None]


def own_url(settings: BrokerSettings) -> str:
    """Return the URL by which other nodes reach a broker, with the port of its settings; empty: there is none."""
    order = settings.scale_down
    for one in clusters_of(settings):
        if one.settings.connector is not None and (order is None or order.cluster_name in (None, one.name)):
            return settings.connectors.get(one.settings.connector, "")
    return next(iter(settings.dialed()), "")


class HandoverService(Service):
    """The links of one life of a node to nodes that it hands over to.

    They are there from the first drain on that dials one, and in each life that finds something of an earlier drain.
    So a broker that is in no cluster and hands nothing over loads nothing of clusters.
    It is the first service of a node, so that the last one of the others and the activation share a turn, as ever.
    """

    kind: ClassVar[str] = "handover"

    def __init__(self, settings: BrokerSettings) -> None:
        self.name = HANDOVER
        self._settings = settings
        self._broker: LocalBroker | None = None
        #: The links; None: nothing was dialed in this life, or in the one before.
        self.made: HandoverLinks | None = None
        self._wanted = trio.Event()

    def announce(self, control: NodeControl) -> None:
        """Check the nodes that may take over.

        Raises:
            SettingsError: one of them can't be dialed, or nobody knows how to dial those that announce themselves.
        """
        order = self._settings.scale_down
        if order is None or not (order.connectors or order.discovery):
            return
        from meshq.cluster import check_reach

        for name in order.connectors:
            url = control.connectors.get(name, name)
            setting = "connectors" if url == name else f"connectors[{name!r}]"
            check_reach(control.env, self._login(), self._shared, url, setting)
        if order.discovery is not None and not own_url(self._settings).startswith(("tcp:", "tls:")):
            allowed = (
                "for a broker with an acceptor, or a connector of a cluster connection: nodes are dialed as that is"
            )
            raise SettingsError("discovery", order.discovery, allowed)

    def bridges(self) -> Sequence[BridgeStatistics]:
        """Return the links that there are now."""
        return self.made.bridges() if self.made is not None else ()

    def take_up(self, broker: LocalBroker) -> None:
        """Restore the links of a drain that was cut."""
        self._broker = broker
        if broker.peers.former(QUEUES):
            self.links().take_up()

    def links(self) -> HandoverLinks:
        """Return the links.

        Raises:
            NotActiveError: the node is not active.
        """
        from meshq.cluster import HandoverLinks

        if self._broker is None:
            raise NotActiveError("the node is not active")
        if self.made is None:
            self.made = HandoverLinks(self._broker, self._login(), self._shared, self._departures)
            self._wanted.set()
        return self.made

    @property
    def _cluster(self) -> ClusterConnection | None:
        """The named or the first cluster connection."""
        order = self._settings.scale_down
        found = clusters_of(self._settings)
        return next((one for one in found if order is None or order.cluster_name in (None, one.name)), None)

    @property
    def _shared(self) -> ClusterSettings | None:
        return self._cluster.settings if self._cluster is not None else None

    def _login(self) -> NodeLogin:
        from meshq.cluster import NodeLogin

        return self._cluster.login if self._cluster is not None else NodeLogin()

    def _departures(self) -> list[Departure]:
        departure = self._cluster.departure if self._cluster is not None else None
        return [departure] if departure is not None else []

    async def serve(self, broker: LocalBroker, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep the links, until cancelled.

        Checkpoint: always.
        Cancellation: the links are closed; what waits for other nodes stays in its queues.
        """
        task_status.started()
        try:
            await self._wanted.wait()
            await self.links().run()
        finally:
            self._broker = None


def order_of(policy: HAPolicy | None, wanted: bool | None) -> ScaleDown | None:
    """Return the order to hand over at a stop.  ``wanted``: what the caller of the stop says; None: nothing."""
    own = order_in(policy)
    if wanted is None:
        # That of a backup is for its takeover.
        return own if own is not None and own.enabled and isinstance(policy, LiveOnly) else None
    return (own if own is not None else ScaleDown()) if wanted else None


class LeavingBroker:
    """A broker as its drain sees it.

    ``service``: returns that of the active node, or raises NotActiveError.  ``loop``: returns the loop in which the
    broker runs.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        service: Callable[[], HandoverService],
        loop: Callable[[], trio.lowlevel.TrioToken | None],
    ) -> None:
        self._settings = settings
        self._service = service
        self._loop = loop

    @property
    def connectors(self) -> Mapping[str, str]:
        """The URLs of the broker's connectors, by name."""
        return self._settings.connectors

    @property
    def own_url(self) -> str:
        """The URL by which others reach the node, as the settings say."""
        return own_url(self._settings)

    def clusters(self) -> Sequence[Departure]:
        """Return the departures of the cluster connections that are served.

        Raises:
            NotActiveError: the broker is not active.
            UsageError: it runs in another thread.
        """
        self._service()
        if trio.lowlevel.current_trio_token() is not self._loop():
            raise UsageError(f"the broker {self._settings.name!r} runs in another thread: drain it there")
        return departures_of(self._settings)

    def near(self) -> Sequence[str]:
        """Return the URLs of the connectors that lead to other brokers of this process."""
        return [url for url in self._settings.connectors.values() if self._is_near(url)]

    def _is_near(self, url: str) -> bool:
        try:
            return url.startswith("inproc:") and Endpoint.parse(url).host != self._settings.name
        except SettingsError:
            return False

    def links(self) -> HandoverLinks:
        """Return the node's links that hand over.

        Raises:
            NotActiveError: the broker is not active.
        """
        return self._service().links()

    def links_made(self) -> HandoverLinks | None:
        """Return these if there are any; None: nothing was dialed."""
        return self._service().made


def _drain_of(broker: LeavingBroker, name: str, order: ScaleDown) -> Drain:
    from meshq.cluster import Drain, DrainOrder

    wanted = DrainOrder(
        targets=order.connectors,
        discovery=order.discovery,
        group=order.group_name,
        cluster=order.cluster_name,
        linked_s=LINKED_S,
        patience_s=PATIENCE_S,
        nearest=True,
    )
    return Drain(name, broker, wanted)


async def take_over_and_hand_over(
    broker: LeavingBroker, name: str, order: ScaleDown, failed: Callable[[], None]
) -> None:
    """Drain a broker that has taken a store over, until another node has everything.

    ``failed``: called after each drain that did not come to its end.

    Checkpoint: always.
    Cancellation: what has moved has moved; the rest stays in the store.
    """
    warnings = Warnings("node", trio.current_time)
    while True:
        try:
            async with _drain_of(broker, name, order):
                pass
        except MeshqError as error:
            failed()
            event = LAST_OF_GROUP if isinstance(error, NotFoundError) else "scale_down_waits"
            text = f"{name} has taken over, and can't hand over what it holds; it tries again in {AGAIN_S:g} s: {error}"
            # What is known of other nodes stands in the text, and changes with each try.
            warnings.say(event, text)
            await trio.sleep(AGAIN_S)
        else:
            return


async def hand_over(broker: LeavingBroker, name: str, order: ScaleDown) -> None:
    """Drain a broker that stops, with a warning if that fails.

    Checkpoint: always.
    Cancellation: what has moved has moved; the rest stays.
    """
    try:
        async with _drain_of(broker, name, order):
            pass
    except NotActiveError as error:
        # Another stop does not wait for it.
        _log.info("%s does not scale down to its end: %s", name, error, extra={"event": "scale_down_cut"})
    except MeshqError as error:
        text = "%s stops without scaling down: what is durable stays in its store: %s"
        event = LAST_OF_GROUP if isinstance(error, NotFoundError) else "scale_down_failed"
        _log.warning(text, name, error, extra={"event": event})
