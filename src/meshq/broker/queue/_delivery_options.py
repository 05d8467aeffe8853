"""Delivery options of messages: a priority, a time to live, a delay, a group.

Most runs have no options, and none of this is ever looked at.  A run with options is divided: the messages of one share
have one priority and become visible at one time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from meshq import limits
from meshq.broker.queue._timers import DueTime
from meshq.broker.records._row_options import WAIT_MS_MAX, RowOptions, asked_of_moved, read_options
from meshq.broker.records._row_ranges import pieces
from meshq.message import MessageOrigin
from meshq.wire import RunBytes

#: What an entry is that is a part of a stage; no other node ever gets one.
STAGED: Final = "staged"
#: What an entry is that describes a queue, by the name of the feature which a node has that makes the queue.
DEFINE: Final = "define"


class FormerCount(NamedTuple):
    """The former counts of a message in another queue: its deliveries, the certain returns among these, and the time of
    its next delivery; None: at once."""

    deliveries: int
    returns: int
    due: DueTime | None = None


class QueueThere(NamedTuple):
    """The queue of another node that messages go to, which is made there if it is missing.

    ``routing``: of its address; ``filter``: empty for everything; ``subscription``: empty if none made it;
    ``features``: "durable" and "on_use", with a space between.
    """

    name: str
    routing: str
    filter: str
    subscription: str
    features: str


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
    #: By row: what was counted before the messages came here; None: nothing of any of them.
    former: Mapping[int, FormerCount] | None = None
    #: Of messages that wait for another node, and are for no queue that is known by its number.
    there: QueueThere | None = None
    #: What waits for another node, if it is no message: the name of the feature that its node needs; or ``STAGED``.
    entry: str = ""
    #: Of messages that wait for another node: the id of the prepared transaction that has acknowledged these, or of
    #: which the entry is a part; and the queue to which such a part, or a stage, sends, empty: the whole address.
    held: bytes = b""
    target: str = ""
    #: Where the record of the prepared transaction stands that has acknowledged the messages on their way here; 0:
    #: none has.
    holder: int = 0
    #: The messages come out of a stage: their duplicate ids count from here on.
    unstaged: bool = False

    def features(self, rows: Sequence[int]) -> set[str]:
        """The features without which another node can't be sent some of the messages as these are here."""
        former = [self.former[row] for row in rows if row in self.former] if self.former is not None else []
        needed = {
            "counts": any(one.deliveries for one in former),
            "due": any(one.due is not None for one in former),
            "queue": self.there is not None,
            "ids": self.entry == "ids",
            DEFINE: self.entry == DEFINE,
            "prepared": bool(self.held),
        }
        return {feature for feature, is_needed in needed.items() if is_needed}

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
        return min(max(0, int(waited)), WAIT_MS_MAX)


def divide(rows: range, asked: Sequence[RowOptions], whole: DeliveryOptions) -> list[tuple[range, DeliveryOptions]]:
    """Some rows of a run as shares whose messages have one priority and become visible together; ``whole``: what is
    said of all of them."""
    if asked.count(asked[0]) == len(asked):
        return [(rows, _alike(rows, asked[0], whole))]
    classes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in rows:
        priority, due, _, _ = asked[row]
        classes[priority, due].append(row)
    if len(classes) == 1:
        return [(rows, _options(rows, asked, whole))]
    return [
        (piece, _options(piece, asked, whole))
        for _, members in sorted(classes.items(), key=lambda item: item[1][0])
        for piece in pieces(members)
    ]


def of_forwarded(rows: range, asked: Sequence[RowOptions], whole: DeliveryOptions) -> DeliveryOptions | None:
    """Return the options of messages that wait for another node: the time to live and the history; the other node
    applies the rest."""
    if whole.former is not None:
        whole = whole._replace(former=picked(whole.former, rows))
    if whole.held or whole.entry == STAGED:
        # What a transaction has acknowledged, or sends, does not expire before the decision; nor what is staged.
        return whole
    expires = tuple(asked[row].expires for row in rows)
    if whole.former is None and not any(expires):
        return whole if whole.origin is not None or whole.there is not None else None
    return whole._replace(expires=expires) if any(expires) else whole


def _alike(rows: range, asked: RowOptions, whole: DeliveryOptions) -> DeliveryOptions:
    """The options of rows that all ask for the same."""
    return whole._replace(
        priority=asked.priority,
        due=asked.due,
        expires=(asked.expires,) * len(rows) if asked.expires else None,
        groups=(asked.group,) * len(rows) if asked.group else None,
        former=picked(whole.former, rows),
    )


def _options(rows: range, asked: Sequence[RowOptions], whole: DeliveryOptions) -> DeliveryOptions:
    _, _, expires, groups = zip(*(asked[row] for row in rows), strict=True)
    return whole._replace(
        priority=asked[rows[0]].priority,
        due=asked[rows[0]].due,
        expires=expires if any(expires) else None,
        # No group is empty.
        groups=groups if any(groups) else None,
        former=picked(whole.former, rows),
    )


def picked(former: Mapping[int, FormerCount] | None, rows: Sequence[int]) -> dict[int, FormerCount] | None:
    """Return the counts of some rows, by their places among these; None: there are none."""
    if not former:
        return None
    return {place: former[row] for place, row in enumerate(rows) if row in former} or None


def options_of_moved(content: RunBytes, options: DeliveryOptions | None) -> list[RowOptions]:
    """Return the options of each message of a run that is moved as it is: messages with an origin wait no more."""
    if options is None:
        return read_options(content, 0)
    return (read_options if options.origin is None else asked_of_moved)(content, options.arrival)
