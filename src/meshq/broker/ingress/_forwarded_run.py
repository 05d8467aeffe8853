"""The history of forwarded messages: age, origin, delivery counts and delays from another node."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from meshq.broker.queue._delivery_options import DeliveryOptions, FormerCount, QueueThere
from meshq.broker.queue._run import StoredRun
from meshq.broker.queue._timers import DueTime, TimerService
from meshq.broker.records._row_options import SPECIAL, RowOptions, asked_of_moved, read_options
from meshq.message import MessageOrigin

_NOTHING: Final[Mapping[int, int]] = MappingProxyType({})


class ForwardedAbout(NamedTuple):
    """The history of a forwarded run.

    ``arrival``: when the first node took it, by its clock, ms; ``waited``: how long that is ago, ms.  ``counts``: by
    row the deliveries and the certain returns; ``waits``: by row for how many ms a message still waits.  ``there``: the
    queue here that it is for, if the node knows it by its name.  ``entry``: what it is if it is no message.
    ``held``: the prepared transaction that has acknowledged the messages, or of which the entry is a part; ``target``:
    the queue that such a part sends to.
    """

    arrival: int
    waited: int
    origin: MessageOrigin | None
    counts: Mapping[int, tuple[int, int]]
    waits: Mapping[int, int] = _NOTHING
    there: QueueThere | None = None
    entry: str = ""
    held: bytes = b""
    target: str = ""


def asked_of_forwarded(
    timers: TimerService, run: StoredRun, kinds: int, about: ForwardedAbout
) -> list[RowOptions] | None:
    """Return the options of each message of a run from another node; None: there are none.

    Raises:
        RemoteProtocolError: its headers can't be read.
    """
    origin, moved = about.origin, about.origin is not None or about.counts or about.waits or about.held
    if not kinds & SPECIAL and run.body is None and not moved:
        return None
    asked = (read_options if origin is None else asked_of_moved)(run.content, about.arrival)
    # What is due already keeps its place among the others.
    now = about.arrival + about.waited
    asked = [one._replace(due=0) if 0 < one.due <= now or about.held else one for one in asked]
    if run.options is None:
        # Otherwise it has waited here, for filters or for disk space, since it came.
        begun = max(1, timers.now_ms - about.waited) if any(one.due for one in asked) else 0
        taken = timers.elapsed_ms - about.waited
        run.options = DeliveryOptions(
            about.arrival, taken=taken, begun=begun, origin=origin, former=_former(timers, about)
        )
    return asked


def _former(timers: TimerService, about: ForwardedAbout) -> dict[int, FormerCount] | None:
    found: dict[int, FormerCount] = {}
    for row in sorted({*about.counts, *about.waits}):
        deliveries, returns = about.counts.get(row, (0, 0))
        wait_ms = about.waits.get(row)
        due = DueTime(timers.elapsed_ms + wait_ms) if wait_ms is not None else None
        found[row] = FormerCount(deliveries, returns, due)
    return found or None
