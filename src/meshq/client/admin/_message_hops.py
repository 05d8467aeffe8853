"""The hops of a message from node to node, and the nodes that a message would go to, as the nodes answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
import trio

from meshq.client.admin._cluster_queues import Ask, ClusterAsker, Values
from meshq.client.admin._message_routes import LOCATION_KEYS, MessageHop, MessageLocation, MessageRouteStep, NodeRoute
from meshq.errors import SettingsError
from meshq.ids import MessageId

#: Nodes that are asked for one message.
NODES_MAX: Final = 64
_HOP_KEYS: Final = ("way", "node_id", "queues")
#: Between the names of queues in a row.
_NEXT: Final = "\n"


def check_everywhere(everywhere: object) -> bool:
    """Check whether all nodes are to be asked.  Raises: SettingsError."""
    if type(everywhere) is not bool:
        raise SettingsError("everywhere", everywhere, "True or False")
    return everywhere


@attrs.define
class _Found:
    """The answers of one node about a message."""

    node: Values
    values: Values = attrs.field(factory=dict)
    locations: tuple[MessageLocation, ...] = ()
    hops: list[Values] = attrs.field(factory=list)
    why: str = ""

    @property
    def seen(self) -> bool:
        return bool(self.locations or self.hops or self.values.get("accepted"))


async def message_hops(ask: Ask, message_id: MessageId) -> tuple[MessageHop, ...]:
    """Ask the nodes of a cluster for a message; return the nodes that it has come by, in its order.

    Checkpoint: always.  Cancellation: nothing has changed.
    Raises:
        MeshqError: the asked broker itself does not answer.
    """
    asker = ClusterAsker(ask)
    found = [_Found(node) for node in (await asker.nodes())[:NODES_MAX]]
    about = {"message_id": str(message_id)}

    async def one(answer: _Found) -> None:
        answer.values, rows = await asker.of(answer.node, "trace", LOCATION_KEYS, about)
        answer.locations = tuple(map(MessageLocation.of, rows))
        answer.why = str(answer.values.get("why", ""))
        if answer.values["reached"]:
            _, answer.hops = await asker.of(answer.node, "trace_hops", _HOP_KEYS, about)

    await one(found[0])
    async with trio.open_nursery() as nursery:
        for answer in found[1:]:
            nursery.start_soon(one, answer)
    return in_order(found)


def in_order(found: Iterable[_Found]) -> tuple[MessageHop, ...]:
    """Return the nodes that a message has come by, each behind the nodes before it."""
    by_id: dict[str, _Found] = {one.node["node_id"]: one for one in found}
    came: dict[str, dict[str, None]] = {}
    queues: dict[str, dict[str, None]] = {}
    for node_id, one in by_id.items():
        for hop in one.hops:
            start, end = (node_id, hop["node_id"]) if hop["way"] == "to" else (hop["node_id"], node_id)
            came.setdefault(end, {})[start] = None
            came.setdefault(start, {})
            queues.setdefault(end, {}).update(dict.fromkeys(filter(None, hop["queues"].split(_NEXT))))
    seen = dict.fromkeys([*(node_id for node_id, one in by_id.items() if one.seen), *came])
    # Who has taken it from its producer is the first.
    waiting = sorted(seen, key=lambda node_id: not (node_id in by_id and by_id[node_id].values.get("accepted")))
    order: list[str] = []
    while waiting:
        free = [one for one in waiting if not any(before in waiting for before in came.get(one, ()) if before != one)]
        # A message that came back has been on a circle: it is left where it began.
        following = free[0] if free else waiting[0]
        waiting.remove(following)
        order.append(following)
    return tuple(_hop(node_id, by_id.get(node_id), came, queues.get(node_id, {})) for node_id in order)


def _hop(
    node_id: str, found: _Found | None, came: Mapping[str, Mapping[str, None]], queues: Mapping[str, None]
) -> MessageHop:
    here = found.locations if found is not None else ()
    names = dict.fromkeys([*queues, *(one.queue for one in here)])
    return MessageHop(
        node_id=node_id,
        node_name=found.node["node_name"] if found is not None else "",
        answered=found is not None and bool(found.values["reached"]),
        why=found.why if found is not None else "it is not known here",
        accepted=found is not None and bool(found.values.get("accepted")),
        queues=tuple(names),
        locations=here,
        came_from=tuple(came.get(node_id, ())),
        went_to=tuple(end for end, starts in came.items() if node_id in starts),
    )


async def node_routes(ask: Ask, steps: Iterable[MessageRouteStep], about: Mapping[str, Any]) -> tuple[NodeRoute, ...]:
    """Ask each node to which a message may go for the message's way there, and give the reasons for all other nodes.

    Checkpoint: always.  Cancellation: nothing has changed.
    Raises:
        MeshqError: the asked broker itself does not answer.
    """
    asker = ClusterAsker(ask)
    nodes = {node["node_id"]: node for node in await asker.nodes() if node["state"] != "here"}
    routes: dict[tuple[str, str], NodeRoute] = {}

    async def one(step: MessageRouteStep) -> None:
        node = nodes.get(step.node_id)
        route = NodeRoute(node_id=step.node_id, node_name=step.node_name, queue=step.name, gets=step.gets, why=step.why)
        if node is not None and step.gets != "no":
            question = {**about, "address": step.address, "name": step.name}
            values, _ = await asker.of(node, "explain_arrival", ("kind",), question)
            there = str(values.get("why", "")) if values["reached"] else f"it does not answer: {values.get('why', '')}"
            route = attrs.evolve(route, answered=bool(values["reached"]), there=there)
        routes[step.node_id, step.name] = route

    remote = [step for step in steps if step.kind == "remote" and step.node_id]
    for step in remote:
        routes[step.node_id, step.name] = NodeRoute(
            node_id=step.node_id, node_name="", queue=step.name, gets="", why=""
        )
    async with trio.open_nursery() as nursery:
        for step in remote[:NODES_MAX]:
            nursery.start_soon(one, step)
    known = {node_id for node_id, _ in routes}
    others = [node for node_id, node in nodes.items() if node_id not in known]
    return (*routes.values(), *(_without_queue(node) for node in others))


def _without_queue(node: Values) -> NodeRoute:
    """A node that has described no queue of the address."""
    if node["state"] == "linked" or (node["state"] == "behind" and node["distance"]):
        why = "it has no queue on the address"
    elif node["state"] == "behind":
        why = "it is more than max_hops links away"
    else:
        why = f"it is {node['state']}"
    return NodeRoute(node_id=node["node_id"], node_name=node["node_name"], queue="", gets="no", why=why)
