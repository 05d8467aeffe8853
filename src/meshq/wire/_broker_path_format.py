"""The path of a message through a network of brokers, as a header has it: a line for each broker, its id and name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from meshq import limits
from meshq.ids import is_broker_id
from meshq.wire._run import HEADER_BRIDGED, HEADER_PATH

_SEPARATOR: Final = "\n"


class PathStep(NamedTuple):
    """A broker that has forwarded a message: its id in hexadecimal digits, and its name."""

    node_id: str
    name: str


def encode_path(steps: Sequence[PathStep]) -> str:
    """Encode a path as the text of a header."""
    return _SEPARATOR.join(f"{step.node_id} {step.name}" if step.name else step.node_id for step in steps)


def without_names(path: str) -> str:
    """Return an encoded path with the ids only: there is always room for it."""
    return encode_path([step._replace(name="") for step in decode_path(path)])


def decode_path(value: Any) -> tuple[PathStep, ...]:
    """Return the brokers that have forwarded a message, the first one first; none if the header has no such text."""
    if type(value) is not str or not value:
        return ()
    steps = []
    for line in value.split(_SEPARATOR):
        node_id, _, name = line.partition(" ")
        if not is_broker_id(node_id):
            return ()
        steps.append(PathStep(node_id, name))
    return tuple(steps) if len(steps) <= limits.NETWORK_HOPS_MAX else ()


def path_of(headers: Mapping[str, Any]) -> tuple[PathStep, ...]:
    """Return the brokers that have forwarded a message with these headers; none if no broker says so: a client's own
    message has no such header."""
    return decode_path(headers.get(HEADER_PATH)) if headers.get(HEADER_BRIDGED) is not None else ()
