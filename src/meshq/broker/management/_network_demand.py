"""The demand of this broker, and the queues kept here, as a session of another broker of the network is told."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from meshq.address import INTERNAL, MANAGEMENT, NETWORK_KEPT, SEPARATOR, TEMPORARY, is_name, kept_for
from meshq.broker.access._access import may, permit
from meshq.broker.catalog._definitions import Definitions
from meshq.broker.catalog._demand_updates import DemandUpdates, IncomingConnector, is_hidden
from meshq.broker.catalog._network_demand_plan import (
    SHARED_SETTINGS,
    QueueDemand,
    demand_rows,
    epoch_of,
    hints_of,
    next_broker,
)
from meshq.broker.catalog._router import Router
from meshq.broker.core._node_identity import NodeIdentity
from meshq.broker.management._pages import page_in_order, page_of
from meshq.broker.management._requester import Requester
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.work._long_operations import Values
from meshq.errors import MeshqError, UsageError
from meshq.ids import IDENTITY_BYTES, is_broker_id
from meshq.wire import Frame

#: The name of the call.
NETWORK_DEMAND: Final = "network_demand"
#: The name of the call for queues that keep messages.
NETWORK_QUEUES: Final = "network_queues"
#: Who asks, for the list of bridges.
_NAMES: Final = ("connector", "broker")
#: Which of the settings that belong on all connectors are set, with spaces between them.
_SETTINGS: Final = "settings"


class _Question(NamedTuple):
    """A call that is not answered: its id, the broker that asks, the epoch that it knows, and from which row on.

    ``connector``, ``broker``: the names of the connector for which it asks, and of its broker; ``settings``: of the
    connector.
    """

    call: int
    asker: str
    known: bytes
    after: int
    connector: str
    broker: str
    settings: tuple[str, ...]


def _question(call: int, named: Mapping[str, Any]) -> _Question:
    """Return the question of a call.  Raises: UsageError: its arguments are none."""
    asker, known, after = named.get("node_id"), named.get("known", b""), named.get("after", 0)
    names = [named.get(name, "") for name in _NAMES]
    good = type(asker) is str and is_broker_id(asker) and type(known) is bytes and type(after) is int
    settings = named.get(_SETTINGS, "")
    set_ones = tuple(settings.split()) if type(settings) is str else ("",)
    good = good and all(name == "" or is_name(name) for name in names) and {*set_ones} <= {*SHARED_SETTINGS}
    if not good or not named.keys() <= {"node_id", "known", "after", _SETTINGS, *_NAMES}:
        raise UsageError(f"{NETWORK_DEMAND} takes node_id, the id of the broker that asks, known, after, and names")
    return _Question(call, str(asker), known, after, names[0], names[1], set_ones)


class _Begun(NamedTuple):
    """An answer of several pages: who asks, its rows, and their epoch."""

    asker: str
    rows: list[dict[str, Any]]
    epoch: bytes


class OpenCalls(Protocol):
    """The calls of a session that wait for their answers."""

    def answer(self, call: int, values: dict[str, Any]) -> None:
        """Answer a call."""

    def decline(self, call: int, error: MeshqError) -> None:
        """Answer a call with an error."""


class NetworkDemand:
    """Answers one session: at once if it knows another epoch, and else when the demand has changed."""

    __slots__ = (
        "_begun",
        "_calls",
        "_definitions",
        "_identity",
        "_listening",
        "_principal",
        "_question",
        "_schedule_flush",
        "_told",
        "_wanted",
        "_warn",
    )

    def __init__(
        self,
        principal: Requester,
        calls: OpenCalls,
        schedule_flush: Callable[[], None],
        definitions: Definitions,
        identity: NodeIdentity,
        *,
        advisory_support: bool,
        warn: Callable[[str, str], None],
    ) -> None:
        """``advisory_support``: without it no demand is told."""
        self._told = advisory_support
        self._warn = warn
        self._principal = principal
        self._schedule_flush = schedule_flush
        self._calls = calls
        self._definitions = definitions
        self._identity = identity
        self._question: _Question | None = None
        self._listening = False
        # What was told in part.  It stays as it was until the last page: else demand that changes is never told whole.
        self._begun: _Begun | None = None
        # Whether the demand may have changed since it was compared.
        self._wanted = False

    def ask(self, frame: Frame, named: Mapping[str, Any]) -> None:
        """Take a call, whose id is noted; an earlier one without an answer is answered now."""
        self._answer(whole=True)
        try:
            self._question = _question(frame.first, named)
        except MeshqError as error:
            self._calls.decline(frame.first, error)
            return
        if self._question.connector:
            question, demand = self._question, self._definitions.router.demand
            demand.incoming[self] = IncomingConnector(question.connector, question.broker, question.settings)
            self._hint(demand)
        if not self._listening:
            self._listening = True
            self._definitions.router.demand.watchers.append(self.changed)
        self._answer()

    def _hint(self, demand: DemandUpdates) -> None:
        """Warn if connectors that meet at this broker differ in a setting that belongs on all."""
        found = {f"{name!r}": settings for name, settings in demand.connectors.items()}
        found.update({f"{one.name!r} of {one.broker!r}": one.settings for one in demand.incoming.values()})
        if hints := hints_of(found):
            self._warn("network_settings_differ", "; ".join(hints))

    def changed(self) -> None:
        """Compare the demand at the end of the pass."""
        if self._question is not None:
            self._wanted = True
            self._schedule_flush()

    def flush(self) -> None:
        """Answer a question whose epoch is not that of the demand any more."""
        if self._wanted:
            self._wanted = False
            self._answer()

    def end(self) -> None:
        """End with the session."""
        self._question = self._begun = None
        self._definitions.router.demand.incoming.pop(self, None)
        if self._listening:
            self._listening = False
            self._definitions.router.demand.watchers.remove(self.changed)

    def _answer(self, *, whole: bool = False) -> None:
        """Answer the question; unless ``whole``, only if the answer is another one than is known."""
        question = self._question
        if question is None:
            return
        if not question.after or self._begun is None or self._begun.asker != question.asker:
            rows = demand_rows(self._demand() if self._told else (), self._identity.node_id.hex(), question.asker)
            self._begun = _Begun(question.asker, rows, epoch_of(rows))
        begun = self._begun
        if begun.epoch == question.known and not question.after and not whole:
            self._begun = None
            return
        self._question = None
        page = page_of("network", begun.rows, question.after)
        if not page["more"]:
            self._begun = None
        about: dict[str, Any] = {"node_id": self._identity.node_id.hex(), "epoch": begun.epoch}
        if may(self._principal, "manage", MANAGEMENT):
            # Only who may open network consumers here needs it.
            about["store"] = hashlib.sha256(self._identity.store).digest()[:IDENTITY_BYTES]
        self._calls.answer(question.call, {**page, **about})

    def _demand(self) -> Iterator[QueueDemand]:
        addresses = self._definitions.router.addresses
        for queue in self._definitions.router.queues.values():
            consumers, topic = queue.roster.consumers, addresses[queue.address].routing == "multicast"
            # A durable queue of a topic, as of a durable subscription, wants messages also while nobody consumes.
            if not (consumers or (topic and queue.durable)) or not self._is_told(queue):
                continue
            if topic:
                # One copy for the queue, whoever shares it.
                spec = queue.spec
                # One that keeps messages for another broker is demand also while the link is down.
                routes = spec.routes or (consumers[0].routes if consumers else ())
                text = spec.filter_text if not routes else spec.wanted if spec.routes else consumers[0].wanted.filter
                yield QueueDemand(queue.address, "multicast", text, 0, routes, queue.durable)
                continue
            for consumer in consumers:
                text = consumer.filter.text if consumer.filter is not None else ""
                text = consumer.wanted.filter if consumer.routes else text
                yield QueueDemand(queue.address, "anycast", text, consumer.priority, consumer.routes)

    def _is_told(self, queue: Queue) -> bool:
        """Whether others of the network see a queue: the one of this name on its address, or any of a topic, to which
        the session may send."""
        name = queue.address
        hidden = is_hidden(queue) or name == MANAGEMENT or name.startswith((INTERNAL, TEMPORARY))
        topic = self._definitions.router.addresses[name].routing == "multicast"
        return (topic or queue.name == name) and not hidden and may(self._principal, "send", name)


def kept_queues(router: Router, asker: Requester, named: Mapping[str, Any]) -> Values:
    """Return a page of the names of queues that keep messages for a broker, in the order of their characters.

    With a ``target_id`` these are only the ones whose messages go to that broker next, and the answer repeats it.

    Raises:
        UsageError: the arguments are none.
        SecurityError: the asker may not manage this broker.
    """
    node_id, beginning, after = (named.get(name) for name in ("node_id", "beginning", "after"))
    target_id = named.get("target_id", "")
    texts = type(node_id) is str and type(beginning) is str and type(after) is str
    ids = is_broker_id(node_id) and (target_id == "" or is_broker_id(target_id))
    if not texts or not ids or not str(beginning).startswith(NETWORK_KEPT):
        takes = "takes node_id, beginning, how names of subscriptions begin, after, and target_id, an id or nothing"
        raise UsageError(f"{NETWORK_QUEUES} {takes}")
    permit(asker, "manage", MANAGEMENT)
    found = _queues(router, str(node_id), str(beginning), after=str(after))
    if not target_id:
        return page_in_order("queues", (one.name for one in found))
    going = (one.name for one in found if one.spec.routes and next_broker(one.spec.routes) == target_id)
    return {**page_in_order("queues", going), "target_id": target_id}


class KeptMessages(NamedTuple):
    """Messages that are kept for another broker of the network: their number, and for how many seconds the oldest of
    them has been; None without any."""

    messages: int
    age_s: float | None


def kept_messages(router: Router, node_id: str, beginning: str, now_ms: int, elapsed_ms: float) -> KeptMessages:
    """Return the number and the age of the messages kept for a connector, and note that these are there now.

    ``beginning``: how the names of its subscriptions begin.  ``now_ms``, ``elapsed_ms``: the time by the clock that
    senders have, too, and by one that nobody can set.
    """
    count = 0
    came: list[float] = []
    router.demand.kept.looked_ms = elapsed_ms
    for queue in _queues(router, node_id, beginning):
        counts, arrivals = queue.counts, router.demand.kept.arrivals[queue.name]
        count += counts.ready + counts.unacked + counts.delayed
        arrivals.look(queue.last, elapsed_ms)
        sent = [each.head.run.stamp for each in queue.lists.all if each.head is not None]
        if sent:
            came.append(arrivals.came(queue.oldest, elapsed_ms - (now_ms - min(sent))))
    return KeptMessages(count, (elapsed_ms - min(came)) / 1_000 if came else None)


def _queues(router: Router, node_id: str, beginning: str, after: str = "") -> Iterator[Queue]:
    """Yield the queues that keep messages for a connector, in the order of their names, behind the name ``after``."""
    for queue in router.demand.kept.behind(after):
        own = queue.name.partition(SEPARATOR)[2]
        if own.startswith(beginning) and kept_for(own) == node_id:
            yield queue
