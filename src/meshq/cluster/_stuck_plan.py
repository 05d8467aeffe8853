"""The decision which messages are stuck, and why: the fronts of queues go in, and the messages that have stood there
for too long come out, with the cause.

A call says what is, never what has happened: a look that is repeated or left out changes nothing but the moment at
which something is noticed (docs/design/seeing.md).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Final

import attrs

from meshq.abc import HeldMessages, RemoteDemand
from meshq.statistics import StuckMessages

#: Seconds after which what is still so is told again.
REPEAT_S: Final = 60.0
#: The modes of links over which waiting messages are redistributed.
REDISTRIBUTING: Final = ("on_demand", "off_with_redistribution")

#: The causes, in the order of the documentation.
CAUSES: Final = (
    "balancing_off",
    "no_redistribution",
    "delay",
    "filter",
    "hop_limit",
    "missing_binding",
    "prepared",
    "flow_control",
    "node_gone",
    "group",
    "paused",
)


@attrs.frozen(kw_only=True)
class Elsewhere:
    """The consumers of a queue on nodes that have not described it here: on nodes that no message reaches from here
    (``beyond``), and on linked nodes (``unbound``); by the ids of the nodes."""

    beyond: tuple[str, ...] = ()
    unbound: tuple[str, ...] = ()


@attrs.frozen
class Cause:
    """Why messages do not move."""

    name: str
    why: str
    node_ids: tuple[str, ...] = ()


@attrs.define
class _Standing:
    """The messages in one state at the front of a queue.

    ``since``: the first look at which just that stood there.  ``demanded``: since when somebody elsewhere wants it and
    nobody here does.  ``told``: by cause the last time that it was told.
    """

    mark: Hashable
    since: float
    demanded: float = math.inf
    told: dict[str, float] = attrs.field(factory=dict)
    stuck: StuckMessages | None = None


def cause_of(
    held: HeldMessages, demanded_s: float, elsewhere: Elsewhere | None = None, group: Cause | None = None
) -> Cause | None:
    """Return the cause that keeps messages; None: no consumer wants them, or the cause is not known.

    ``demanded_s``: for how long only consumers elsewhere have wanted them.  ``group``: what keeps the group of the
    first message, which is not consumed on this node.
    """
    if held.kind == "forwarding":
        return _forwarding(held)
    if held.kind == "full":
        why = f"the address {held.address!r} is full at the node for which they wait"
        return Cause("flow_control", why, (held.node_id,))
    demand = held.consumers > 0 or bool(held.remote)
    if held.kind == "ready" and not demand:
        return _unseen(held, elsewhere)
    if not demand:
        return None
    if held.kind == "prepared":
        return Cause("prepared", f"the prepared transaction {held.xid.hex()} has acknowledged them, and is not decided")
    if held.kind == "delayed":
        return Cause("delay", "they were handed back, and wait before they are delivered again")
    if held.paused:
        return Cause("paused", "the queue is paused")
    if held.group is not None:
        return group
    return _here(held) if held.consumers else _there(held, demanded_s)


def _forwarding(held: HeldMessages) -> Cause | None:
    ids = (held.node_id,)
    if held.paused:
        return Cause("paused", "the queue for the other node is paused", ids)
    if held.gone:
        return Cause("node_gone", f"they wait for a node that is {held.gone}", ids)
    if held.sent:
        return Cause("flow_control", f"{held.sent} were sent, and the other node does not say that it stores them", ids)
    return None


def _here(held: HeldMessages) -> Cause | None:
    """The cause where the queue has consumers on this node."""
    if held.wants is None:
        return None
    if held.wants:
        return (
            None if held.credit else Cause("flow_control", "the window of each consumer that takes the first is full")
        )
    wanting = tuple(one.node_id for one in held.remote if one.wants)
    if wanting and not held.keeps:
        # They are about to move, or the other node has no room.
        return _held_back(held, [one for one in held.remote if one.wants])
    more = f"; consumers on other nodes do, but {held.keeps}" if wanting else ""
    return Cause("filter", f"no filter of a consumer here accepts the first message{more}", wanting)


def _there(held: HeldMessages, demanded_s: float) -> Cause | None:
    """The cause where only other nodes have consumers."""
    remote = held.remote
    every = tuple(one.node_id for one in remote)
    if all(one.mode == "off" for one in remote):
        return Cause("balancing_off", "its consumers are on other nodes, and load_balancing is 'off'", every)
    open_ways = [one for one in remote if one.mode != "off"]
    if all(one.gone for one in open_ways):
        return Cause("node_gone", "its consumers were last on nodes that are gone", _ids(open_ways))
    there = [one for one in open_ways if not one.gone]
    if all(one.mode not in REDISTRIBUTING for one in there):
        return Cause("no_redistribution", f"load_balancing {there[0].mode!r} moves nothing that waits", _ids(there))
    there = [one for one in there if one.mode in REDISTRIBUTING]
    if held.keeps:
        return Cause("no_redistribution", held.keeps, _ids(there))
    if held.redistribution_delay is None:
        return Cause("no_redistribution", "redistribution_delay of the address is None", _ids(there))
    if all(one.wants is False for one in there):
        return Cause("filter", "no filter of a consumer on another node accepts the first message", _ids(there))
    if demanded_s < held.redistribution_delay:
        return Cause("delay", f"redistribution_delay is {held.redistribution_delay:g} s, and not over", _ids(there))
    return _held_back(held, [one for one in there if one.wants])


def _held_back(held: HeldMessages, wanting: list[RemoteDemand]) -> Cause | None:
    if wanting and not any(one.room for one in wanting):
        return Cause("flow_control", "as many as may go ahead wait for the nodes that want them", _ids(wanting))
    return None


def _unseen(held: HeldMessages, elsewhere: Elsewhere | None) -> Cause | None:
    """The cause where no consumer is known on this node."""
    if elsewhere is None:
        return None
    if elsewhere.unbound:
        why = "linked nodes have consumers, and their queue of that name is not bound here"
        return Cause("missing_binding", why, elsewhere.unbound)
    if elsewhere.beyond:
        return Cause("hop_limit", "its consumers are on nodes that are more than max_hops links away", elsewhere.beyond)
    return None


def _ids(remote: Iterable[RemoteDemand]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.node_id for one in remote))


class StuckPlan:
    """The fronts of the queues of a node, with the times since when they stand.  ``timeout_s``: longer is stuck."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._standing: dict[tuple[str, str], _Standing] = {}
        # By queue: when other nodes were asked who consumes from it, and what they said.
        self._asked: dict[str, tuple[float, Elsewhere | None]] = {}

    def see(
        self, queue: str, found: Iterable[HeldMessages], now: float, group: Cause | None = None
    ) -> list[StuckMessages]:
        """Compare the front of a queue with its earlier front; return the stuck messages that are to be told now.

        ``group``: what keeps the group of the first message, if anything does.
        """
        told: list[StuckMessages] = []
        kinds: dict[str, None] = {}
        for held in found:
            # Several addresses may be full at one node.
            kind = f"{held.kind} {held.address}" if held.kind == "full" else held.kind
            kinds[kind] = None
            key = queue, kind
            known = self._standing.get(key)
            if known is None or known.mark != held.mark:
                known = self._standing[key] = _Standing(held.mark, now)
            self._demanded(known, held, now)
            stuck = self._judge(known, held, now, group)
            if stuck is not None and now - known.told.get(stuck.cause, -math.inf) >= REPEAT_S:
                known.told[stuck.cause] = now
                told.append(stuck)
        for key in [key for key in self._standing if key[0] == queue and key[1] not in kinds]:
            del self._standing[key]
        if "ready" not in kinds:
            self._asked.pop(queue, None)
        return told

    def retain(self, queues: Iterable[str]) -> None:
        """Forget all queues but these: nothing waits in the others."""
        kept = set(queues)
        self._standing = {key: one for key, one in self._standing.items() if key[0] in kept}
        self._asked = {name: one for name, one in self._asked.items() if name in kept}

    def _demanded(self, known: _Standing, held: HeldMessages, now: float) -> None:
        only_there = not held.consumers and any(one.wants is not False and not one.gone for one in held.remote)
        known.demanded = min(known.demanded, now) if only_there else math.inf

    def _judge(self, known: _Standing, held: HeldMessages, now: float, group: Cause | None) -> StuckMessages | None:
        known.stuck = None
        if now - known.since < self._timeout_s:
            return None
        asked = self._asked.get(held.queue)
        fresh = asked is not None and now - asked[0] <= 2 * self._timeout_s
        demanded_s = now - known.demanded if known.demanded < math.inf else 0.0
        cause = cause_of(held, demanded_s, asked[1] if asked is not None and fresh else None, group)
        if cause is not None:
            known.stuck = StuckMessages(
                queue=held.queue,
                address=held.address,
                cause=cause.name,
                why=cause.why,
                messages=held.messages,
                seconds=now - known.since,
                first=held.first,
                node_ids=cause.node_ids,
            )
        return known.stuck

    def stuck(self) -> list[StuckMessages]:
        """Return all messages that were stuck at the last look."""
        return [one.stuck for one in self._standing.values() if one.stuck is not None]

    def to_ask(self, held: Iterable[HeldMessages], now: float) -> bool:
        """Whether other nodes are to be asked for consumers of a queue: messages stand, and no consumer is known."""
        for one in held:
            known = self._standing.get((one.queue, one.kind))
            if one.kind != "ready" or known is None or now - known.since < self._timeout_s:
                continue
            asked = self._asked.get(one.queue)
            return not one.consumers and not one.remote and (asked is None or now - asked[0] >= self._timeout_s)
        return False

    def asking(self, queue: str, now: float) -> None:
        """Note that other nodes are asked now."""
        self._asked[queue] = now, None

    def answered(self, queue: str, elsewhere: Elsewhere, now: float) -> None:
        """Note the answers of other nodes."""
        if queue in self._asked:
            self._asked[queue] = now, elsewhere
