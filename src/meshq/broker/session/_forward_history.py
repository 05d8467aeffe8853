"""The history of the messages of a FORWARD frame, and the queue that it may name instead of a number."""

from __future__ import annotations

from typing import Final

from meshq.address import INTERNAL, ROUTINGS, SEPARATOR, TEMPORARY, is_name
from meshq.broker.ingress._forwarded_run import ForwardedAbout
from meshq.broker.queue._delivery_options import DEFINE, QueueThere
from meshq.broker.queue._queue_spec import SUBSCRIPTIONS
from meshq.errors import FilterError
from meshq.message import MessageOrigin
from meshq.selector import parse_filter
from meshq.wire import PREPARED_PARTS, Forward, decode_former, decode_waits, violation

#: What a run may be if it is no run of messages.
ENTRIES: Final = ("ids", DEFINE, *PREPARED_PARTS)
#: The part of a prepared transaction that has many rows.
SENDS: Final = PREPARED_PARTS[1]
#: The reason of a move is one short word; later versions may have other words.
_REASON_CHARACTERS_MAX: Final = 32


def history_of(header: Forward, rows: int) -> ForwardedAbout:
    """Return the history of a run of ``rows`` messages.

    Raises:
        RemoteProtocolError: no messages have such a history, or no node has such a queue.
    """
    return ForwardedAbout(
        header.arrival,
        header.waited,
        _origin(header),
        decode_former(header.counts, rows),
        decode_waits(header.due, rows),
        _queue(header),
        _entry(header, rows),
        header.held,
        header.target,
    )


def _entry(header: Forward, rows: int) -> str:
    part = header.entry in PREPARED_PARTS
    several = part and header.entry == SENDS
    if header.entry and (header.entry not in ENTRIES or (rows != 1 and not several) or bool(header.queue) is part):
        raise violation("bad_header", f"an entry {header.entry!r} of {rows} rows; known: {', '.join(ENTRIES)}")
    if header.entry and header.upload:
        # Nothing keeps that body: the message would be stored without it.
        raise violation("bad_header", f"an entry {header.entry!r} with a large body")
    if (part and not header.held) or (header.held and not part and not header.queue):
        raise violation(
            "bad_header", "a part of a transaction without an id, or messages that it holds without a queue"
        )
    if header.target and (header.entry != SENDS or not is_name(header.target)):
        raise violation("bad_header", f"a target {header.target!r} of what sends to none")
    return header.entry


def _queue(header: Forward) -> QueueThere | None:
    if not header.queue:
        return None
    if len(header.queue) != len(QueueThere._fields):
        raise violation("bad_header", f"a queue described by {len(header.queue)} texts")
    there = QueueThere(*header.queue)
    name = there.name
    if there.subscription:
        prefix = f"{header.address}{SEPARATOR}"
        if there.subscription not in SUBSCRIPTIONS or there.routing != "multicast" or not name.startswith(prefix):
            raise violation("bad_header", f"a subscription queue {name!r} on {header.address!r}")
        name = name.removeprefix(prefix)
    if not is_name(name) or name.startswith((INTERNAL, TEMPORARY)) or there.routing not in ROUTINGS:
        raise violation("bad_header", "a queue without a valid name or routing type, or one of a node's own")
    try:
        parse_filter(there.filter) if there.filter else None
    except FilterError as error:
        raise violation("bad_header", f"a queue with a filter that is not understood: {error}") from error
    return there


def _origin(header: Forward) -> MessageOrigin | None:
    """Return the origin of a run.

    Raises:
        RemoteProtocolError: the header has a part of an origin, or an origin that no moved message has.
    """
    if not header.origin:
        return None
    if len(header.origin) != len(MessageOrigin._fields):
        raise violation("bad_header", f"an origin of {len(header.origin)} parts")
    origin = MessageOrigin(*header.origin)
    # Messages are moved back to their origin: a queue would be made there, or messages of a node's own be mixed up.
    # The queue of a subscription bears the name of its address, too.
    own = origin.queue.removeprefix(f"{origin.address}{SEPARATOR}")
    named = is_name(origin.address) and is_name(own) and not origin.address.startswith(INTERNAL)
    if not named or not origin.reason.isidentifier() or len(origin.reason) > _REASON_CHARACTERS_MAX:
        raise violation("bad_header", "an origin that no moved message has")
    return origin
