"""The names of the durable queues in which messages of topics wait for a link of a network connector."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from meshq import limits
from meshq.address import NETWORK_KEPT, SEPARATOR, kept_copy

#: What stands before the id of the broker that has the connector, and before the number of a copy.
_OF: Final = "@"
_COPY: Final = "#"
#: Digits of a digest that stands for a name or a filter.
_DIGITS: Final = 16


class KeptQueue(NamedTuple):
    """A queue that keeps messages: its address, the name of its subscription, and which copy of a message it is."""

    address: str
    name: str
    copy: int


class KeptNames:
    """The names of the queues of one direction of a link.

    ``connector``: the label of the link; ``node_id``: of the broker that has the connector.  The nodes of a cluster,
    and brokers that have connectors of one name to one hub, have queues of their own by that.
    """

    def __init__(self, connector: str, node_id: str) -> None:
        self._prefix = f"{NETWORK_KEPT}{connector}."
        self._of = f"{_OF}{node_id}"

    def name(self, address: str, filter: str, copy: int) -> str:
        """Return the name of the subscription that keeps messages of a topic, with this filter."""
        kind = f"{_COPY}{copy}-{_digest(filter)}" if filter or copy else ""
        room = limits.ADDRESS_BYTES_MAX - len(f"{self._prefix}{self._of}{_COPY}{copy}-".encode()) - _DIGITS
        return f"{self._prefix}{address if len(address.encode()) <= room else _digest(address)}{self._of}{kind}"

    def among(self, queues: Iterable[str]) -> list[KeptQueue]:
        """Return the queues of this direction among the queues of a broker.

        What another broker says of its queues is a claim: any other name is none of these.
        """
        found = []
        for queue in queues:
            address, _, name = queue.partition(SEPARATOR)
            copy = kept_copy(name)
            if copy is not None and name.rpartition(self._of)[0] in (
                f"{self._prefix}{address}",
                f"{self._prefix}{_digest(address)}",
            ):
                found.append(KeptQueue(address, name, copy))
        return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
