"""Spans of deliveries: consecutive messages of one run, which are settled together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from meshq.client.incoming._delivered_run import DeliveredRun, ReceivedMessage
from meshq.errors import SettingsError, with_kind

RUN: Final = attrgetter("_run")
_INDEX: Final = attrgetter("_index")


class DeliverySpan(NamedTuple):
    """Consecutive messages of one run, as given to ``ack``."""

    run: DeliveredRun
    start: int
    rows: int

    @property
    def mask(self) -> int:
        """Their bits in ``run.settled``."""
        return ((1 << self.rows) - 1) << self.start

    @property
    def first(self) -> int:
        """Tag of the first message."""
        return self.run.first + self.start

    @property
    def last(self) -> int:
        """Tag of the last message."""
        return self.run.first + self.start + self.rows - 1


def spans_of(deliveries: Sequence[ReceivedMessage]) -> list[DeliverySpan]:
    """Turn deliveries into spans, in the order given, comparing ranges and not single messages.

    Raises:
        SettingsError: one of them is none.
    """
    try:
        return _spans_of(deliveries)
    except AttributeError:
        check_deliveries(deliveries, RUN)
        raise


def check_deliveries(deliveries: Sequence[object], part: Callable[[Any], object]) -> None:
    """Check that all objects are deliveries: that they have the attribute of ``part``.

    Raises:
        SettingsError: one of them is none.
    """
    for one in deliveries:
        try:
            part(one)
        except AttributeError:
            allowed = "what a consumer of this client has received"
            raise SettingsError("deliveries", one, allowed, shown=with_kind(one)) from None


def _spans_of(deliveries: Sequence[ReceivedMessage]) -> list[DeliverySpan]:
    spans: list[DeliverySpan] = []
    start, end = 0, len(deliveries)
    while start < end:
        first = deliveries[start]
        run, index = first._run, first._index
        stop = min(end, start + run.rows - index)
        if stop - start > 1:
            part = deliveries[start:stop]
            indexes = list(map(_INDEX, part))
            if indexes != list(range(index, index + stop - start)) or list(map(RUN, part)) != [run] * (stop - start):
                stop = start + 1
                while stop < end and deliveries[stop]._run is run and deliveries[stop]._index == index + stop - start:
                    stop += 1
        spans.append(DeliverySpan(run, index, stop - start))
        start = stop
    return spans
