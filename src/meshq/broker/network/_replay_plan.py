"""Decides which messages go back to a broker that has had them: the ones that no consumer of their queue accepts.

A message keeps the path from where it was sent to where it is.  If it goes to a broker on that path it goes back: its
path is again what it was there.  So a path never has a broker twice, and the way back needs no TTL.  How often a
message has gone back only rises, and is bounded: so it comes to rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshq import limits
from meshq.selector import Filter, MessageView
from meshq.wire import BrokerPath

#: Filters of other consumers to which a message is put at most before it goes back.
OTHERS_MAX = 64


def is_open(been: BrokerPath, node_id: str, way: Sequence[str], hops: int) -> bool:
    """Whether a message can go a way from this broker, ``node_id``, to its end.

    ``way``: the ids of the brokers from the one with the consumers to the next one.  ``hops``: how many brokers may be
    on the path of a message.
    """
    path, returns, at = [step.node_id for step in been.steps], been.returns, node_id
    for other in reversed(way):
        if other in path:
            del path[path.index(other) :]
            returns += 1
        else:
            path.append(at)
            if len(path) > hops:
                return False
        at = other
    return returns <= limits.NETWORK_RETURNS_MAX


class ReplayFilter(Filter):
    """The filter of a network consumer with replay: it also accepts messages that go back.

    ``onward``: the filter of what goes on over brokers that have not had it.  Others are told of that alone: what goes
    back is nothing to wait for.
    """

    __slots__ = ("_key", "onward")

    def __init__(
        self,
        onward: Filter,
        *,
        node_id: str,
        ways: Sequence[tuple[str, ...]],
        hops: int,
        wanted: Filter,
        others: Sequence[Filter],
    ) -> None:
        """``wanted``: of the consumers at the ends of the ways; ``others``: of the other consumers here."""
        every = (onward, wanted, *others)
        self.onward: Filter = onward
        self._key = (onward.text, node_id, tuple(ways), hops, wanted.text, tuple(one.text for one in others))
        verdicts = [one.verdict for one in others]

        def verdict(view: MessageView) -> bool | None:
            if onward.verdict(view) is True:
                return True
            been = view.header("been")
            if not been.ids or not any(is_open(been, node_id, way, hops) for way in ways):
                return False
            return wanted.verdict(view) is True and not any(accepts(view) is True for accepts in verdicts)

        self._set(
            text=onward.text,
            names=onward.names,
            searches=sum(one.searches for one in every),
            terms=sum(one.terms for one in every) + 1,
            uses_properties=any(one.uses_properties for one in every),
            asks_path=all(one.asks_path for one in every),
            index=None,
            verdict=verdict,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Filter):
            return NotImplemented
        return isinstance(other, ReplayFilter) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def onward_of(filter: Filter | None) -> Filter | None:
    """Return the filter of a consumer as it is without replay; None: there is none."""
    return filter.onward if isinstance(filter, ReplayFilter) else filter


def others_of(filter: Filter, filters: Mapping[str | None, tuple[Filter | None, int]]) -> list[Filter] | None:
    """Return the filters of the other consumers of a queue, each once; None: one of them accepts everything, or they
    are too many to ask.

    ``filter``: of the consumer itself; ``filters``: of all, by their texts, and how many consumers have each.
    """
    if None in filters or len(filters) > OTHERS_MAX + 1:
        return None
    found: list[Filter] = []
    for one, count in filters.values():
        onward = onward_of(one)
        if onward is not None and (count > 1 or onward.text != filter.text):
            found.append(onward)
    return found if len(found) <= OTHERS_MAX else None
