"""Delivery options of messages: a priority, a time to live, a delay, a group.

Most runs have no options, and none of this is ever looked at.  A run with options is divided: the messages of one share
have one priority and become visible at one time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from meshq import limits
from meshq.broker.queue._row_ranges import pieces
from meshq.errors import RemoteProtocolError
from meshq.message import MessageOrigin
from meshq.wire import KIND_CONTROL, KIND_PRIORITY, RunBytes, RunView, decode_map, violation

#: A run with one of these has to be looked at message by message.
SPECIAL: Final = KIND_CONTROL | KIND_PRIORITY
_MS_MAX: Final = limits.TIME_S_MAX * 1000


class DeliveryOptions(NamedTuple):
    """The options that the messages of one share have in common, and the options of each message."""

    #: When the first broker took them, by its clock, ms; 0: they are not late and expire no more.
    arrival: int
    priority: int = limits.PRIORITY_DEFAULT
    #: When they become visible, ms; 0: at once.
    due: int = 0
    #: When each of them is of no use any more, ms, 0: never; None: none of them ever.
    expires: tuple[int, ...] | None = None
    #: The group of each of them; None: none has one.
    groups: tuple[str | None, ...] | None = None
    origin: MessageOrigin | None = None
    #: When the first broker took the messages, in ms of this life of this node (``TimerService.elapsed_ms``): a clock
    #: that is set does not change how long they still wait.  None: the messages are from an earlier life.
    taken: float | None = None
    #: The same by this node's time of day, for its later lives, ms since 1970; 0: as ``arrival``, since this node was
    #: the first, or nothing waits.
    begun: int = 0

    @property
    def wait_ms(self) -> int:
        """How long they were to wait in all."""
        return self.due - self.arrival if self.due else 0

    @property
    def due_here(self) -> int:
        """When they become visible by this node's time of day, ms since 1970."""
        return (self.begun or self.arrival) + self.wait_ms

    def waited_ms(self, elapsed_ms: float, now_ms: int) -> int:
        """How long ago the first broker took them: as this life has seen it, or by the time of day."""
        waited = now_ms - (self.begun or self.arrival) if self.taken is None else elapsed_ms - self.taken
        return min(max(0, int(waited)), _MS_MAX)


class RowOptions(NamedTuple):
    """The options of one message; times are absolute, 0 is none."""

    priority: int = limits.PRIORITY_DEFAULT
    due: int = 0
    expires: int = 0
    group: str | None = None


def read_options(content: RunBytes, arrival_ms: int) -> list[RowOptions]:
    """Return the options of each message of a run; without an arrival (0) no times.

    Raises:
        RemoteProtocolError: the headers can't be read.
    """
    view = RunView(content)
    found = []
    for row in range(content.rows):
        priority = view.priority(row)
        if view.kind(row) & KIND_CONTROL:
            found.append(_controlled(view.headers(row), priority, arrival_ms))
        else:
            found.append(RowOptions(priority))
    return found


def _controlled(data: bytes, priority: int, arrival_ms: int) -> RowOptions:
    headers = decode_map(data, limits.ENVELOPE_BYTES_MAX, lists=False)
    ttl, delay, group = headers.get("x", 0), headers.get("d", 0), headers.get("g")
    if (
        any(type(span) is not int or not 0 <= span <= _MS_MAX for span in (ttl, delay))
        or not (group is None or (type(group) is str and 0 < len(group.encode()) <= limits.GROUP_BYTES_MAX))
        or (not ttl and not delay and group is None)
    ):
        raise violation("bad_header", "a message has a time to live, a delay or a group that can't be one")
    if not arrival_ms:
        return RowOptions(priority, group=group)
    return RowOptions(priority, arrival_ms + delay if delay else 0, arrival_ms + ttl if ttl else 0, group)


def readable(content: RunBytes) -> bool:
    """Whether the headers of a run's messages can be read."""
    try:
        read_options(content, 0)
    except RemoteProtocolError:
        return False
    return True


def asked_of_moved(content: RunBytes, arrival_ms: int) -> list[RowOptions]:
    """Return the options of moved messages: delays are over."""
    return [one._replace(due=0) for one in read_options(content, arrival_ms)]


def divide(rows: range, asked: Sequence[RowOptions], whole: DeliveryOptions) -> list[tuple[range, DeliveryOptions]]:
    """Some rows of a run as shares whose messages have one priority and become visible together; ``whole``: what is
    said of all of them."""
    classes: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        one = asked[row]
        classes.setdefault((one.priority, one.due), []).append(row)
    if len(classes) == 1:
        return [(rows, _options(rows, asked, whole))]
    return [
        (piece, _options(piece, asked, whole))
        for _, members in sorted(classes.items(), key=lambda item: item[1][0])
        for piece in pieces(members)
    ]


def of_forwarded(rows: range, asked: Sequence[RowOptions], whole: DeliveryOptions) -> DeliveryOptions | None:
    """Return the options of messages that wait for another node: the time to live; the other node applies the rest."""
    expires = tuple(asked[row].expires for row in rows)
    return whole._replace(expires=expires) if any(expires) else None


def _options(rows: range, asked: Sequence[RowOptions], whole: DeliveryOptions) -> DeliveryOptions:
    chosen = [asked[row] for row in rows]
    return whole._replace(
        priority=chosen[0].priority,
        due=chosen[0].due,
        expires=tuple(one.expires for one in chosen) if any(one.expires for one in chosen) else None,
        groups=tuple(one.group for one in chosen) if any(one.group is not None for one in chosen) else None,
    )
