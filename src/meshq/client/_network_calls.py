"""The client's calls for connectors of a network of brokers: demand, and the consumers for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs

from meshq import limits
from meshq.client.admin._queue_names import names_behind
from meshq.client.receive._consumer import Consumer, Subscription, check_consumer
from meshq.errors import CallTimeoutError
from meshq.ids import IDENTITY_BYTES, NETWORK_MARK, is_broker_id
from meshq.wire import PathStep, encode_path, violation

if TYPE_CHECKING:
    from meshq.client._client import Client
    from meshq.client.receive._delivery import Delivery

_NAMES = ("address", "routing", "filter", "priority", "ways", "durable", "consumers")
_TYPES = (str, str, str, int, str, bool, int)
_UNNAMED: Final[Mapping[str, str]] = MappingProxyType({})
_ABOUT = ("node_id", "store", "epoch")


@attrs.frozen(kw_only=True)
class DemandSnapshot:
    """All demand of a broker that another one may satisfy.

    ``node_id``: of the broker, in hexadecimal digits; ``store``: what it calls its store, None to who may not
    manage it.  ``rows``: of each kind of demand its address, routing type, filter, priority, ways, durability and
    number of consumers, as the broker says them; without ``whole`` there are more, which were not asked for.
    """

    node_id: str
    store: bytes | None
    epoch: bytes
    rows: tuple[dict[str, Any], ...]
    whole: bool = True


async def demand_of(
    client: Client, node_id: str, known: bytes, *, most: int, names: Mapping[str, str] = _UNNAMED
) -> DemandSnapshot | None:
    """Wait until the demand of a broker is another one than that of the epoch ``known``, and return it; None: there
    was no answer in time, which says nothing.

    ``node_id``: of the broker that asks; ``names``: of its ``connector`` and of itself, the ``broker``, by which it is
    listed as an incoming bridge, and which ``settings`` of the connector that belong on all connectors are set.
    ``most``: after so many rows no more are asked for.

    Checkpoint: always.  Cancellation: nothing has changed.
    Raises:
        MeshqError: the broker has refused, or the connection is lost.
    """
    ask = client._context.ask
    try:
        first = values = _checked(await ask("network_demand", node_id=node_id, known=known, after=0, **names))
        page = rows = _rows(values)
        while (more := bool(values.get("more") and page)) and len(rows) < most:
            values = _checked(await ask("network_demand", node_id=node_id, known=b"", after=len(rows)))
            if values["epoch"] != first["epoch"]:
                # It has changed between two pages.
                first = values = _checked(await ask("network_demand", node_id=node_id, known=b"", after=0))
                rows = []
            page = _rows(values)
            rows = rows + page
    except CallTimeoutError:
        return None
    about: dict[str, Any] = {name: first.get(name) for name in _ABOUT}
    return DemandSnapshot(**about, rows=tuple(row for row in rows if _is_row(row)), whole=not more)


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return an answer that says whose it is.

    Raises:
        RemoteProtocolError: it does not.
    """
    store, epoch = values.get("store", bytes(IDENTITY_BYTES)), values.get("epoch")
    good = is_broker_id(values.get("node_id")) and type(store) is bytes and len(store) == IDENTITY_BYTES
    if not good or type(epoch) is not bytes or not epoch:
        raise violation("bad_header", "an answer about demand without the id of a broker, its store and an epoch")
    return values


def _rows(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a page."""
    found: list[dict[str, Any]] = []
    while (at := len(found)) >= 0 and f"{_NAMES[0]}{at}" in values:
        found.append({name: values.get(f"{name}{at}") for name in _NAMES})
    return found


def _is_row(row: dict[str, Any]) -> bool:
    typed = all(type(row[name]) is kind for name, kind in zip(_NAMES, _TYPES, strict=True))
    return typed and row["consumers"] > 0


def network_consumer(
    client: Client,
    address: str,
    *,
    topic: bool = False,
    filter: str,
    window: int,
    priority: int,
    routes: tuple[str, ...],
    hops: int,
    kept: str = "",
    replay: str = "",
) -> Consumer:
    """Create a network consumer of a queue, or of a ``topic`` with a queue that goes with it, to be used as
    ``async with``.

    Messages that have gone ``hops`` hops, or have been at the last broker of the ``routes``, are not for it.
    ``kept``: the name of the durable queue of the topic, which stays when the consumer goes.  ``replay``: the filter of
    messages of a queue that go there again if no other consumer accepts them; empty: none do.

    Raises:
        FilterError: the filter is no condition.
    """
    bound = 16 * limits.MIB
    text = check_consumer(address, window, bound, "explicit", filter=filter or None, priority=priority)
    return Consumer(
        client._context,
        address,
        window=window,
        window_bytes=bound,
        auto=False,
        filter=text,
        subscription=Subscription("shared" if kept else "own", kept, bool(kept)) if topic else None,
        priority=priority,
        routes=routes,
        hops=hops,
        replay=replay,
    )


async def kept_queues(
    client: Client, node_id: str, beginning: str, *, most: int, target_id: str = ""
) -> tuple[list[str], bool]:
    """Return the names of the queues of a broker that keep messages for connectors of the broker ``node_id``, and
    whether there are more than ``most``, which are not read.

    ``beginning``: how the names of their subscriptions begin.  ``target_id``: only those whose messages go to this
    broker next; a broker that can't say so names none.

    Checkpoint: always.  Cancellation: nothing has changed.
    Raises:
        RemoteProtocolError: the answer has what is no name, or names in another order.
        MeshqError: the broker has refused, or the connection is lost.
    """
    names: list[str] = []
    more, about = True, {"node_id": node_id, "beginning": beginning}
    if target_id:
        about["target_id"] = target_id

    async def ask(operation: str, **named: Any) -> dict[str, Any]:
        values = await client._context.ask(operation, **named)
        return values if values.get("target_id", "") == target_id else {}

    while more and len(names) < most:
        after = names[-1] if names else ""
        found, more = await names_behind(ask, after, "network_queues", **about)
        names += found
    return names[:most], more or len(names) > most


class NetworkQueue(NamedTuple):
    """The queue of a network consumer: its name, the lowest number of a message that is not settled there, which may
    not be visible yet, and the highest number."""

    name: str
    oldest: int
    last: int


async def reroute(consumer: Consumer, routes: tuple[str, ...], replay: str = "") -> NetworkQueue:
    """Change the ways on which the messages of an open network consumer go, and which of them go there again; the last
    broker stays the same.  Return what is said of its queue.

    Checkpoint: always.  Cancellation: they are changed or not.
    Raises:
        MeshqError: the consumer is gone, or the connection is lost.
    """
    about = {"channel": consumer._inbox.channel, "routes": " ".join(routes), "replay": replay}
    values = await consumer._context.ask("network_routes", **about)
    name, oldest, last = (values.get(one) for one in ("queue", "oldest", "last"))
    if type(name) is not str or type(oldest) is not int or type(last) is not int:
        raise violation("bad_header", "an answer about a network consumer without its queue and the numbers there")
    return NetworkQueue(name, oldest, last)


def path_beyond(delivery: Delivery, node_id: str, name: str, target_id: str) -> str:
    """Return the encoded path of a message at the broker ``target_id``, to which a broker with this id and name
    forwards it."""
    been = delivery._broker_path
    return encode_path(*been.beyond(PathStep(node_id, name), target_id))


def topic_id(store: bytes, copy: int, delivery: Delivery) -> bytes:
    """Return the id of a message of a topic, the same on each way through a network of brokers: so a broker that it
    reaches by two ways stores it once.

    It is made where the message is forwarded first, of the message's own id, which all nodes of a cluster know.  That
    of a message that was moved is made where that was, also of its origin and of the ``store`` of the broker: several
    queues may have had it.  ``copy``: which of several copies over one link it is.
    """
    origin = delivery.origin
    if origin is not None and origin.reason == "redriven":
        # It is where it was before.
        origin = None
    if delivery._broker_path.steps and origin is None and (known := delivery._run.view.duplicate_id(delivery._index)):
        # Further copies are made where it is forwarded first, and nowhere else.
        return known
    producer, number = delivery.message_id
    parts = [producer, number.to_bytes(8, "big"), copy.to_bytes(4, "big")]
    if origin is not None:
        parts += [store, *(text.encode() + b"\0" for text in origin)]
    return NETWORK_MARK + hashlib.sha256(b"".join(parts)).digest()
