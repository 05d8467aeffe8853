"""The path of a message through a network of brokers, as a header has it: a line for each broker, its id and name.

Before these stands a line for a message that has gone back: how often, and the brokers from which it went.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from meshq import limits
from meshq.ids import is_broker_id
from meshq.wire._run import HEADER_BRIDGED, HEADER_PATH

_SEPARATOR: Final = "\n"
#: How the line begins that a message has which has gone back.
_BACK: Final = "<"
_COUNTS: Final = {str(number): number for number in range(1, limits.NETWORK_RETURNS_MAX + 1)}


class PathStep(NamedTuple):
    """A broker that has forwarded a message: its id in hexadecimal digits, and its name."""

    node_id: str
    name: str


class BrokerPath(NamedTuple):
    """Where a message has been.

    ``steps``: the brokers on its way, from the one where it was sent to the one before this.  ``left``: the ids of
    brokers from which it has gone back to one on its way, the latest last.  ``returns``: how often it has gone back.
    """

    steps: tuple[PathStep, ...] = ()
    left: tuple[str, ...] = ()
    returns: int = 0

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all brokers that have forwarded it, each once."""
        return tuple(dict.fromkeys([*self.left, *(step.node_id for step in self.steps)]))

    def beyond(self, step: PathStep, target_id: str) -> BrokerPath:
        """Return the path of the message when a broker has forwarded it to another one.

        If that one is on its way, the message goes back, and its way is again what it was there.
        """
        on_way = [one.node_id for one in self.steps]
        if target_id not in on_way:
            return self._made([*self.steps, step], self.left, self.returns)
        at = on_way.index(target_id)
        return self._made(self.steps[:at], [*self.left, *on_way[at + 1 :], step.node_id], self.returns + 1)

    @classmethod
    def _made(cls, steps: Sequence[PathStep], left: Iterable[str], returns: int) -> BrokerPath:
        """Return a path that has room in a header: of the brokers that it has left the oldest are forgotten."""
        latest = list(dict.fromkeys(reversed(list(left))))[: max(0, limits.NETWORK_HOPS_MAX - len(steps))]
        return cls(tuple(steps), tuple(reversed(latest)), returns)


def encode_path(steps: Sequence[PathStep], left: Sequence[str] = (), returns: int = 0) -> str:
    """Encode a path as the text of a header."""
    lines = [" ".join([f"{_BACK}{returns}", *left])] if returns else []
    lines += [f"{step.node_id} {step.name}" if step.name else step.node_id for step in steps]
    return _SEPARATOR.join(lines)


def without_names(path: str) -> str:
    """Return an encoded path with the ids only: there is always room for it."""
    found = decode_path(path)
    return encode_path([step._replace(name="") for step in found.steps], found.left, found.returns)


def decode_path(value: Any) -> BrokerPath:
    """Return where a message has been; an empty path if the header has no such text."""
    if type(value) is not str or not value:
        return BrokerPath()
    lines = value.split(_SEPARATOR)
    left: tuple[str, ...] = ()
    returns = 0
    if lines[0].startswith(_BACK):
        count, *ids = lines.pop(0)[1:].split(" ")
        left, returns = tuple(ids), _COUNTS.get(count, 0)
        if not returns or not all(map(is_broker_id, left)):
            return BrokerPath()
    steps = []
    for line in lines:
        node_id, _, name = line.partition(" ")
        if not is_broker_id(node_id):
            return BrokerPath()
        steps.append(PathStep(node_id, name))
    fits = len(steps) + len(left) <= limits.NETWORK_HOPS_MAX
    return BrokerPath(tuple(steps), left, returns) if fits else BrokerPath()


def path_of(headers: Mapping[str, Any]) -> BrokerPath:
    """Return where a message with these headers has been; an empty path if no broker says so: a client's own message
    has no such header."""
    return decode_path(headers.get(HEADER_PATH)) if headers.get(HEADER_BRIDGED) is not None else BrokerPath()
