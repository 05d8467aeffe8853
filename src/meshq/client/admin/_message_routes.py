"""Routes and locations of messages, as a broker explains them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from meshq import limits
from meshq.errors import SettingsError
from meshq.ids import MessageId
from meshq.message import (
    MessageOrigin,
    PropertyValue,
    check_durable,
    check_priority,
    check_properties,
    check_text,
)
from meshq.wire import encode_map

#: Properties and headers of a message whose way is asked for: they have to fit in the header of one frame.
_EXPLAINED_BYTES_MAX: Final = 2 * limits.KIB


def query(
    properties: Mapping[str, PropertyValue] | None, texts: Mapping[str, str | None], *, durable: bool, priority: int
) -> dict[str, Any]:
    """Return the arguments about a message whose route is asked for; empty: any message.

    ``texts``: its headers, by name.

    Raises:
        SettingsError: a part of it is not allowed.
    """
    if properties is not None:
        check_properties(properties)
    headers = {name: check_text(name, text) for name, text in texts.items() if text is not None}
    if properties is None and not headers and durable is True and priority == limits.PRIORITY_DEFAULT:
        return {}
    about = {"properties": encode_map(dict(properties or {})), "headers": encode_map(headers)}
    size = len(about["properties"]) + len(about["headers"])
    if size > _EXPLAINED_BYTES_MAX:
        raise SettingsError(
            "properties", None, f"at most {_EXPLAINED_BYTES_MAX} bytes", shown=f"<{size} bytes, encoded>"
        )
    return about | {"durable": check_durable(durable), "priority": check_priority(priority)}


@attrs.frozen(kw_only=True)
class MessageRouteStep:
    """A step of a message's route: a queue, a divert, or a queue of another node.

    ``kind``: ``queue``, ``divert`` or ``remote``.  ``address``: where it stands.  ``via``: the queue that keeps the
    messages for another node.  ``gets``: ``yes``, ``no`` or ``maybe``, and ``why``.

    Where the user may not look there is one step for the address, without a name.
    """

    kind: str
    name: str
    address: str
    via: str
    #: Only messages of which this is true; None: all.
    filter: str | None
    gets: str
    why: str
    #: Of a queue of another node: that node, as the asked broker knows it.
    node_id: str = ""
    node_name: str = ""


@attrs.frozen(kw_only=True)
class NodeRoute:
    """A node of a cluster in the route of a message: whether the message goes to a queue there, and why.

    ``gets``: ``yes``, ``no`` or ``maybe``.  ``there``: the node's own answer to what it would do with the message;
    empty: it was not asked.  ``answered``: whether it has answered.
    """

    node_id: str
    node_name: str
    queue: str
    gets: str
    why: str
    there: str = ""
    answered: bool = False


@attrs.frozen(kw_only=True)
class MessageRoute:
    """The route of a message to ``address``: the steps that it would take.

    ``routing``: of the address, or of the one that would come into being.  ``exists``: it is there.  ``creates``: it
    would be made by the first message.  ``permitted``: whoever was asked about may send there.  ``waits``: why senders
    have to wait now; empty if they don't.
    """

    address: str
    routing: str
    exists: bool
    creates: bool
    permitted: bool
    waits: str
    steps: tuple[MessageRouteStep, ...]
    #: With ``everywhere``: the other nodes of the cluster.
    nodes: tuple[NodeRoute, ...] = ()

    @property
    def nowhere(self) -> bool:
        """Whether no queue gets the message, and none would be created for it."""
        return not self.creates and not any(step.gets != "no" for step in self.steps if step.kind != "divert")

    @classmethod
    def of(cls, values: Mapping[str, Any], steps: list[dict[str, Any]]) -> MessageRoute:
        """Build the record from a broker's answer; unknown values of a newer broker are ignored."""
        known = {field.name for field in attrs.fields(cls)}
        about = {name: value for name, value in values.items() if name in known}
        made = [MessageRouteStep(**{**step, "filter": step["filter"] or None}) for step in steps]
        return cls(**{**about, "steps": tuple(made)})


@attrs.frozen(kw_only=True)
class MessageLocation:
    """The location of a message in one queue.

    ``state``: ``storing`` (not durable yet), ``scheduled``, ``ready``, ``delayed`` (handed back, and waiting),
    ``delivering`` (with a consumer, whose ``session``, ``user`` and ``peer`` are named) or ``forwarding`` (on its way
    to another node).  ``sequence``: its number in the queue; 0: it has none yet.  ``deliveries``: how often it may have
    been delivered before.  ``origin``: where it was before it was moved here.
    """

    queue: str
    address: str
    state: str
    sequence: int
    deliveries: int
    origin: MessageOrigin | None
    session: int
    user: str
    peer: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> MessageLocation:
        """Build the record from a broker's answer."""
        origin = MessageOrigin(*(row[f"origin_{part}"] for part in MessageOrigin._fields))
        about = {name: value for name, value in row.items() if not name.startswith("origin_")}
        return cls(**about, origin=origin if origin.reason else None)


@attrs.frozen(kw_only=True)
class MessageHop:
    """A node that a message has come by.

    ``accepted``: the node remembers that the producer has sent the message there.  ``queues``: those that it was for on
    this node, and those in which it is.  ``locations``: where it is there now.  ``came_from``, ``went_to``: the ids of
    the nodes before and behind.  ``answered``: whether the node has answered, and ``why`` it has not.
    """

    node_id: str
    node_name: str
    answered: bool
    why: str
    accepted: bool
    queues: tuple[str, ...]
    locations: tuple[MessageLocation, ...]
    came_from: tuple[str, ...]
    went_to: tuple[str, ...]


@attrs.frozen(kw_only=True)
class MessageTrace:
    """The locations of a message on one node.

    ``accepted``: the node remembers that its producer has sent it this message, whatever became of it.  ``hops``: with
    ``everywhere``, the nodes of the cluster that the message has come by, in its order.
    """

    message_id: MessageId
    accepted: bool
    locations: tuple[MessageLocation, ...]
    hops: tuple[MessageHop, ...] = ()


#: The values in each row of a broker's answer.
STEP_KEYS: Final = tuple(field.name for field in attrs.fields(MessageRouteStep))
LOCATION_KEYS: Final = (
    *(field.name for field in attrs.fields(MessageLocation) if field.name != "origin"),
    *(f"origin_{part}" for part in MessageOrigin._fields),
)
