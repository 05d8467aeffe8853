"""The link of a network connector to one other broker: one connection, and one or both directions over it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import partial

import attrs
import trio

from meshq.abc import LocalBroker
from meshq.address import is_name
from meshq.bridge import BridgeCounts
from meshq.client import (
    Client,
    ClientFactory,
    Connected,
    ConnectionEvent,
    DemandSnapshot,
    Disconnected,
    FailedOver,
    demand_of,
    keep_to_node,
    on_failed_attempts,
    watch,
)
from meshq.concurrency import ChangeSignal
from meshq.errors import MeshqError
from meshq.ids import IDENTITY_BYTES
from meshq.network._demand_machine import (
    MORE_ROUTES,
    ROUTE_SEPARATOR,
    SUBSCRIPTIONS_MAX,
    UNASKED,
    DemandRules,
    DemandTable,
    NetworkSubscription,
    nearest,
)
from meshq.network._direction import Direction, ForwardingBroker
from meshq.network._kept_plan import KeptNames
from meshq.network._network_link_life import new_life
from meshq.network._settings import NetworkSettings
from meshq.statistics import BridgeStatistics


def subscriptions_of(snapshot: DemandSnapshot) -> list[NetworkSubscription]:
    """Return the subscriptions that a snapshot tells of."""
    return [
        NetworkSubscription(
            address=row["address"],
            routing=row["routing"],
            ways=_ways(row["ways"].split(" ")),
            unasked=_ways(route for route in row["ways"].split(" ") if route.startswith(UNASKED)),
            more_ways=row["ways"].endswith(MORE_ROUTES),
            filter=row["filter"],
            priority=row["priority"],
            consumers=row["consumers"],
            durable=row["durable"],
        )
        for row in snapshot.rows
    ]


def _ways(routes: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    each = (route.removeprefix(UNASKED) for route in routes if route != MORE_ROUTES)
    return tuple(tuple(route.split(ROUTE_SEPARATOR)) for route in each)


class _Events:
    """Hears of the connection of the client of the other broker."""

    def __init__(self, link: NetworkLink) -> None:
        self._link = link

    def put(self, event: ConnectionEvent) -> None:
        self._link.heard(event)

    def close(self) -> None:
        return


@attrs.frozen(kw_only=True)
class LinkOwner:
    """The connector of a link, as the link sees it.

    ``factory``: makes the client of the other broker.  ``kept``: the names of queues that keep messages for the link.
    ``warn``: takes event, text and cause.  ``changed``: called when
    something has changed that a program may wait for.  ``demand_changed``: called when the links of the broker have to
    compare.
    """

    factory: Callable[[], ClientFactory]
    kept: KeptNames
    warn: Callable[[str, str, str], None]
    changed: Callable[[], None]
    demand_changed: Callable[[], None]


class NetworkLink:
    """The link to the broker at one URL."""

    def __init__(
        self,
        url: str,
        label: str,
        settings: NetworkSettings,
        broker: LocalBroker,
        owner: LinkOwner,
    ) -> None:
        self.url: str = url
        self._label = label
        self._settings = settings
        self._broker = broker
        self._owner = owner
        self._counts = BridgeCounts()
        self._life = new_life()
        control = broker.control
        self._here = ForwardingBroker(
            node_id=control.node_id.hex(),
            name=control.name,
            store=control.store,
            topics=hashlib.sha256(control.store).digest()[:IDENTITY_BYTES],
        )
        #: The demand at the other broker.
        self.table: DemandTable = self._table(self._here.node_id)
        #: The name of the other broker as it was connected last.
        self.peer: str = ""
        self._forward: Direction | None = None
        self._back: Direction | None = None
        self._up = trio.Event()
        # The epoch of the demand that is known there; and the questions that are being asked, there and here.
        self._known = b""
        self._asking = trio.CancelScope()
        self._asking_here = trio.CancelScope()
        self._back_known = ChangeSignal()
        # A client does not keep who hears of its connection.
        self._events = _Events(self)

    def _table(self, node_id: str) -> DemandTable:
        settings = self._settings
        return DemandTable(
            DemandRules(
                node_id=node_id,
                network_ttl=settings.network_ttl,
                conduit=settings.conduit_subscriptions,
                decrease=settings.decrease_network_consumer_priority,
                suppress=settings.suppress_duplicate_queue_subscriptions,
                replay=settings.replay,
                inclusion=settings.inclusion,
            )
        )

    @property
    def state(self) -> str:
        """The state of the link."""
        return self._life.state

    @property
    def forward(self) -> Direction | None:
        """The direction from here to the other broker; None while the link is not kept."""
        return self._forward

    def statistics(self) -> BridgeStatistics:
        """Return the state and the counters of the link, in the form of a bridge's."""
        counts = self._counts
        kept, age = self._kept()
        return BridgeStatistics(
            name=self._label,
            queue="",
            target=self.url.partition("?")[0],
            forwarding_address=None,
            state=self.state,
            carried=counts.carried,
            refused=counts.refused,
            failed=counts.failed,
            ended=counts.ended,
            rejected=counts.rejected,
            last_error=counts.last_error,
            kept=kept,
            kept_for=age,
        )

    def _kept(self) -> tuple[int, float | None]:
        """How many messages wait here for the other broker, and for how many seconds the oldest of them has."""
        return self._broker.demand.kept(self._owner.kept.beginning)

    def look_at_kept(self) -> None:
        """Count the kept messages, so that their time of arrival is known later."""
        self._kept()

    async def run(self) -> None:
        """Keep the link.

        Checkpoint: always.
        Cancellation: the link is closed; what was not confirmed by the other side is in its queue again.
        """
        try:
            while True:
                self._life.on("connect")
                try:
                    await self._link()
                except MeshqError as error:
                    self._counts.last_error = str(error)
                    what = "begins again" if self.peer else "can't be made"
                    text = f"the link {self._label} to {self.url.partition('?')[0]} {what}: {error}"
                    self._owner.warn("network_link_broken", text, self._label)
                self._lost()
                await trio.sleep(self._settings.retry_interval)
        finally:
            self._life.on("stop")
            self._lost()
            self._forward = self._back = None
            self._owner.changed()

    async def _link(self) -> None:
        broker = self._broker
        env = broker.control.env
        here = Client.over(partial(broker.acceptor.connect_local, "a service"), env=env, reconnect_attempts=0)
        factory = self._owner.factory()
        there = factory.connect()
        if len(factory.endpoints) > 1:
            # What waits for one of them is not for another one, and neither is what is on its way there.
            keep_to_node(there)
        on_failed_attempts(there, self._not_reached)
        watch(there, self._events)
        names = self._owner.kept
        self._forward = self._direction(self.table, here, there, names, claimed=False)
        self._forward.broker = self._here
        if self._settings.duplex:
            control = broker.control
            # Another id after each start would leave queues behind there.
            stays = control.data_dir is not None or control.wanted_id is not None
            self._back = self._direction(self._table(""), there, here, names if stays else None, claimed=True)
        async with there, here, trio.open_nursery() as nursery:
            nursery.start_soon(self._forward.serve)
            if self._back is not None:
                nursery.start_soon(self._back.serve)
                nursery.start_soon(self._ask_here, here, self._back)
            await self._ask_there(there)
            nursery.cancel_scope.cancel()

    def _direction(
        self, table: DemandTable, source: Client, target: Client, names: KeptNames | None, *, claimed: bool
    ) -> Direction:
        return Direction(
            self._settings,
            table,
            source=source,
            target=target,
            wall=self._broker.control.env.wall,
            counts=self._counts,
            warn=self._owner.warn,
            changed=self._owner.changed,
            names=names,
            claimed=claimed,
        )

    def _not_reached(self, error: MeshqError) -> None:
        self._counts.last_error = str(error)
        kept, age = self._kept()
        keeps = f" and keeps {kept:,} messages, the oldest for {age:.0f} s" if age is not None else ""
        self._owner.warn("network_link_down", f"the link {self._label} is down{keeps}: {error}", self._label)

    # -- the connection

    def heard(self, event: ConnectionEvent) -> None:
        """Take an event of the connection: without one there is no demand."""
        if isinstance(event, Disconnected):
            self._up = trio.Event()
            if self.state != "stopped":
                self._life.on("lose")
            self._lost()
            return
        if isinstance(event, (Connected, FailedOver)):
            self.peer = event.node_name
        self._up.set()

    def _lost(self) -> None:
        self._known = b""
        self.table.clear()
        self._end_back()
        self._asking.cancel()
        self._owner.demand_changed()

    def _end_back(self) -> None:
        """End the network consumers of the other direction."""
        if self._back is not None:
            self._back.broker = None
            self._back.compare({})
            self._asking_here.cancel()

    # -- demand

    async def _ask_there(self, there: Client) -> None:
        """Ask the other broker for its demand, again and again; return if the connection leads to this broker."""
        while True:
            await self._up.wait()
            with trio.CancelScope() as self._asking:
                label = self._label if is_name(self._label) else self._settings.name
                names = {"connector": label, "broker": self._here.name}
                names["settings"] = " ".join(self._settings.shared)
                snapshot = await self._asked(there, self._here.node_id, self._known, names)
                if snapshot is None or not self._up.is_set():
                    continue
                if snapshot.node_id == self._here.node_id:
                    self._life.on("meet_self")
                    text = (
                        f"the broker at {self.url.partition('?')[0]}, {self.peer!r}, has the id of this one, "
                        f"{self._here.name!r}: it is this one, or its data are a copy; nothing is forwarded"
                    )
                    self._owner.warn("network_same_id", text, self.url.partition("?")[0])
                    self._owner.changed()
                    await trio.sleep(self._settings.check_period)
                    return
                self._known = snapshot.epoch
                self._life.on("answer")
                self._replace(self.table, snapshot)
                self._owner.demand_changed()
                self._begin_back(snapshot)

    def _begin_back(self, snapshot: DemandSnapshot) -> None:
        """Begin the other direction, now that the broker at its beginning is known."""
        back = self._back
        if back is None:
            return
        if snapshot.store is None:
            why = f"the user at {self.url.partition('?')[0]} needs the permission 'manage' for what comes from there"
            self._counts.last_error = why
            self._owner.warn("network_one_way", f"{self._label} is not duplex: {why}", "")
            self._end_back()
            return
        # What may ask there for the name of the store can't know the ids in advance.
        store = hashlib.sha256(snapshot.store + self._here.store).digest()[:IDENTITY_BYTES]
        found = ForwardingBroker(node_id=snapshot.node_id, name=self.peer, store=store, topics=snapshot.store)
        if back.broker != found:
            self._end_back()
            back.broker, back.table = found, self._table(found.node_id)
            self._back_known.tell()

    async def _ask_here(self, here: Client, back: Direction) -> None:
        """Ask this broker for the demand that the other one may satisfy, again and again."""
        known: bytes = b""
        asked: ForwardingBroker | None = None
        while True:
            while (broker := back.broker) is None:
                await self._back_known.wait()
            if broker is not asked:
                known, asked = b"", broker
            with trio.CancelScope() as self._asking_here:
                snapshot = await self._asked(here, broker.node_id, known)
                if snapshot is None or back.broker is not broker:
                    continue
                known = snapshot.epoch
                self._replace(back.table, snapshot)
                back.compare(nearest([back.table]))
                self._owner.changed()

    async def _asked(
        self, client: Client, node_id: str, known: bytes, names: dict[str, str] | None = None
    ) -> DemandSnapshot | None:
        """Ask for demand; None: there is nothing new."""
        try:
            return await demand_of(client, node_id, known, most=SUBSCRIPTIONS_MAX, names=names or {})
        except MeshqError as error:
            if client.statistics().state in ("failed", "closed"):
                raise
            self._counts.last_error = str(error)
            await trio.sleep(self._settings.retry_interval)
            return None

    def _replace(self, table: DemandTable, snapshot: DemandSnapshot) -> None:
        table.replace(snapshot.node_id, subscriptions_of(snapshot))
        if not snapshot.whole:
            table.left_out["too_many"] += 1
        if table.left_out["too_many"]:
            text = f"some subscriptions of the broker at {self.url.partition('?')[0]} are too many, and get nothing"
            self._owner.warn("network_subscriptions_max", text, self.url)
