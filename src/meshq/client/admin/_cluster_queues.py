"""The queue of one name on all nodes of a cluster, as the nodes answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import attrs
import trio

from meshq.address import parse_target
from meshq.errors import MeshqError
from meshq.wire import encode_map

Values = dict[str, Any]
#: Calls an operation of one broker; returns the named values of the answer.
Ask = Callable[..., Awaitable[Values]]

#: Nodes that are asked at once.
ASKED_MAX: Final = 16
#: The ages of states that last since nobody knows when.
_UNKNOWN_AGE: Final = -1.0


@attrs.frozen(kw_only=True)
class ClusteredConsumer:
    """A consumer of a queue, on the node that it is connected to.

    ``filter``: what it takes; None: everything.  ``unacked``: messages that it has and has not settled.  ``stalled``:
    it can't take a message now, because its window is full or its client is away.
    """

    filter: str | None
    unacked: int
    stalled: bool


@attrs.frozen(kw_only=True)
class InFlightMessages:
    """Messages that wait on a node for the queue of another one.

    ``waiting``: all of them; ``sent``: those of them that are on their way, and not known to be stored there.
    """

    node_id: str
    node_name: str
    waiting: int
    sent: int


@attrs.frozen(kw_only=True)
class QueueOnNode:
    """A queue on one node of a cluster.

    ``state``: the node as the asked broker sees it: ``here``, ``linked``, ``connecting``, ``left``, ``away``, ``down``,
    or ``behind`` other nodes.  ``known``: the source of the figures: ``answered`` by the node itself; ``described`` by
    the node before, which are consumers and filters only; or ``unknown``.  ``age``: for how many seconds a node that
    did not answer has not been heard; None: the node has answered, or nobody knows.  ``why``: why there is no answer.

    Figures that are not known are None.  ``exists``: whether the node has the queue.  ``in_flight``: what waits there
    for the queue on other nodes.
    """

    node_id: str
    node_name: str
    state: str
    known: str
    age: float | None
    why: str
    exists: bool | None
    address: str | None = None
    paused: bool | None = None
    ready: int | None = None
    delivering: int | None = None
    delayed: int | None = None
    scheduled: int | None = None
    consumers: int | None = None
    #: One for each consumer whose filter is known; None: they are not known one by one.
    consumer_list: tuple[ClusteredConsumer, ...] | None = None
    #: The filters of its consumers, if each of them has one; None: it is not known.
    filters: tuple[str, ...] | None = None
    in_flight: tuple[InFlightMessages, ...] | None = None


@attrs.frozen(kw_only=True)
class ClusterQueue:
    """The queue of one name on all nodes of a cluster that the asked broker knows, that broker first.

    The sums count what the nodes have answered, ``consumers`` the described ones of other nodes as well; ``complete``
    says whether every node has answered.
    """

    name: str
    nodes: tuple[QueueOnNode, ...]

    @property
    def complete(self) -> bool:
        """Whether every node has answered."""
        return all(node.known == "answered" for node in self.nodes)

    @property
    def ready(self) -> int:
        """The ready messages on the nodes that have answered."""
        return sum(node.ready or 0 for node in self.nodes)

    @property
    def delivering(self) -> int:
        """The messages that consumers have, on the nodes that have answered."""
        return sum(node.delivering or 0 for node in self.nodes)

    @property
    def in_flight(self) -> int:
        """The messages that wait on one node for another one, on the nodes that have answered."""
        return sum(one.waiting for node in self.nodes for one in node.in_flight or ())

    @property
    def consumers(self) -> int:
        """The known consumers, with the described ones of nodes that do not answer."""
        return sum(node.consumers or 0 for node in self.nodes)


_NODE_KEYS: Final = ("node_id", "node_name", "state", "distance", "age")
_PART_KEYS: Final = ("kind", "node_id", "filter", "messages", "sent", "stalled")


class ClusterAsker:
    """Asks the nodes of a cluster through one broker."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._slots = trio.CapacityLimiter(ASKED_MAX)

    async def nodes(self) -> list[Values]:
        """Return the known nodes; the asked broker is the first."""
        return (await self._pages(self._ask, "cluster_nodes", _NODE_KEYS, {}))[1]

    async def of(
        self, node: Mapping[str, Any], operation: str, keys: tuple[str, ...], about: Mapping[str, Any]
    ) -> tuple[Values, list[Values]]:
        """Return the values and the rows with which a node answers; without an answer ``reached`` is False, and
        ``why``."""

        async def there(operation: str, **arguments: Any) -> Values:
            known = encode_map(arguments)
            return await self._ask("ask_node", node_id=node["node_id"], question=operation, arguments=known)

        here = node["state"] == "here"
        try:
            async with self._slots:
                values, rows = await self._pages(self._ask if here else there, operation, keys, about)
        except MeshqError as error:
            if here:
                raise
            return {"reached": False, "why": str(error)}, []
        return {"reached": True, **values}, rows

    async def _pages(
        self, ask: Ask, operation: str, keys: tuple[str, ...], about: Mapping[str, Any]
    ) -> tuple[Values, list[Values]]:
        rows: list[Values] = []
        while True:
            values = await ask(operation, **about, after=len(rows))
            before = len(rows)
            while f"{keys[0]}{len(rows) - before}" in values:
                index = len(rows) - before
                rows.append({key: values[f"{key}{index}"] for key in keys if f"{key}{index}" in values})
            if not values.get("more") or len(rows) == before or values.get("reached") is False:
                return values, rows


async def cluster_queue(ask: Ask, name: str) -> ClusterQueue:
    """Ask all nodes of a cluster for the queue of a name, each once, at the same time.

    Checkpoint: always.  Cancellation: nothing has changed.
    Raises:
        SettingsError: no queue can have that name.
        MeshqError: the asked broker itself does not answer.
    """
    parse_target(name, "name")
    asker = ClusterAsker(ask)
    nodes = await asker.nodes()
    answers: dict[str, tuple[Values, list[Values]]] = {}

    async def one(node: Values) -> None:
        answers[node["node_id"]] = await asker.of(node, "node_queue", _PART_KEYS, {"name": name})

    # The asked broker first: its errors are those of the call.
    await one(nodes[0])
    async with trio.open_nursery() as nursery:
        for node in nodes[1:]:
            nursery.start_soon(one, node)
    names = {node["node_id"]: node["node_name"] for node in nodes}
    described = answers[nodes[0]["node_id"]][1]
    found = tuple(_on_node(node, answers[node["node_id"]], described, names) for node in nodes)
    return ClusterQueue(name=name, nodes=found)


def _on_node(
    node: Values, answer: tuple[Values, list[Values]], described: list[Values], names: Mapping[str, str]
) -> QueueOnNode:
    values, rows = answer
    about = {key: node[key] for key in ("node_id", "node_name", "state")}
    if not values["reached"]:
        return _without_answer(node, about, str(values.get("why", "")), described)
    answered = {**about, "known": "answered", "age": None, "why": ""}
    in_flight = tuple(
        InFlightMessages(
            node_id=row["node_id"],
            node_name=names.get(row["node_id"], ""),
            waiting=row["messages"],
            sent=row["sent"],
        )
        for row in rows
        if row["kind"] == "link"
    )
    if not values.get("exists"):
        return QueueOnNode(**answered, exists=False, in_flight=in_flight)
    consumers = tuple(
        ClusteredConsumer(filter=row["filter"] or None, unacked=row["messages"], stalled=row["stalled"])
        for row in rows
        if row["kind"] == "consumer"
    )
    filters = dict.fromkeys(one.filter for one in consumers if one.filter is not None)
    return QueueOnNode(
        **answered,
        exists=True,
        consumer_list=consumers,
        filters=tuple(filters) if all(one.filter is not None for one in consumers) else (),
        in_flight=in_flight,
        **{key: values[key] for key in _FIGURES},
    )


_FIGURES: Final = ("address", "paused", "ready", "delivering", "delayed", "scheduled", "consumers")


def _without_answer(node: Values, about: Values, why: str, described: list[Values]) -> QueueOnNode:
    """Return a node that did not answer, as it has described the queue before, with the time since it was heard."""
    age = node["age"] if node["age"] != _UNKNOWN_AGE else None
    bindings = [row for row in described if row["kind"] == "binding" and row["node_id"] == node["node_id"]]
    if not bindings:
        return QueueOnNode(**about, known="unknown", age=age, why=why, exists=None)
    filters = [row["filter"] for row in described if row["kind"] == "filter" and row["node_id"] == node["node_id"]]
    return QueueOnNode(
        **about,
        known="described",
        age=age,
        why=why,
        exists=True,
        consumers=bindings[0]["messages"],
        filters=tuple(dict.fromkeys(filters)),
    )
