"""The names of the durable queues in which messages of topics wait for a link of a network connector."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from meshq import limits
from meshq.address import NETWORK_KEPT, SEPARATOR, is_name, kept_copy

#: What stands before the id of the broker that has the connector, and before the number of a copy.
_OF: Final = "@"
_COPY: Final = "#"
#: What is between the name of a connector and the place of a link.
_AT: Final = "/"
#: Digits of a digest that stands for a name, a filter or a place.
_DIGITS: Final = 16
#: Bytes of the name of a connector that stand in a name of a queue.  A longer name is a digest there: the topic needs
#: room, too.
_CONNECTOR_BYTES_MAX: Final = 128
#: What stands for a place: a digest; before there was one, the number of a URL, or nothing.
_PLACE: Final = re.compile(rf"(?:{_AT}([0-9a-f]+))?\.")
#: What is between the places of a URL that is a list, in the text of which there is a digest.
_OR: Final = ","
#: Host and port of each place in a URL.
_PLACES: Final = re.compile(r"(?:^|[(,:])\s*[^:(,]*://([^?,)]+)")


class KeptQueue(NamedTuple):
    """A queue that keeps messages: its address, the name of its subscription, and which copy of a message it is."""

    address: str
    name: str
    copy: int


class KeptNames:
    """The names of the queues of one direction of a link.

    ``connector``: its name; ``place``: the place of the link among its URLs, which says in any order of these whose
    messages wait; ``node_id``: of the broker that has the connector.  The nodes of a cluster, and brokers that have
    connectors of one name to one hub, have queues of their own by that.  ``places``: all places of the connector;
    None: they come and go.  ``target_id``: of the broker that is linked, if the place is a list of several: what waits
    for one of them is not for another one, unless both are nodes with one id.
    """

    def __init__(
        self, connector: str, place: str, node_id: str, places: Collection[str] | None = None, target_id: str = ""
    ) -> None:
        #: The id of the broker that has the connector.
        self.node_id: str = node_id
        fits = len(connector.encode()) <= _CONNECTOR_BYTES_MAX
        self._connector = f"{NETWORK_KEPT}{connector if fits else _digest(connector)}"
        self._about = connector, place, node_id, places
        one = f"{_digest_of_place(place)}{_digest(target_id)[: _DIGITS // 2]}" if target_id else _digest_of_place(place)
        self._prefix = f"{self._connector}{_AT}{one}{'.' if len(one) == _DIGITS else ''}"
        self._of = f"{_OF}{node_id}"
        self._places = None if places is None else tuple(map(_digest_of_place, places))

    def at(self, target_id: str) -> KeptNames:
        """Return the names while this broker is linked."""
        return KeptNames(*self._about, target_id if _OR in self._about[1] else "")

    def name(self, address: str, filter: str, copy: int) -> str:
        """Return the name of the subscription that keeps messages of a topic, with this filter."""
        kind = f"{_COPY}{copy}-{_digest(filter)}" if filter or copy else ""
        room = limits.ADDRESS_BYTES_MAX - len(f"{self._prefix}{self._of}{_COPY}{copy}-".encode()) - _DIGITS
        return f"{self._prefix}{address if len(address.encode()) <= room else _digest(address)}{self._of}{kind}"

    @property
    def beginning(self) -> str:
        """The beginning of all names of this direction, the same for each broker of a list."""
        return self._prefix

    @property
    def beginning_anywhere(self) -> str:
        """How the names of all places of the connector begin; empty: its places come and go."""
        return self._connector if self._places is not None else ""

    def among(self, queues: Iterable[str]) -> list[KeptQueue]:
        """Return the queues of this direction among the queues of a broker.

        What another broker says of its queues is a claim: any other name is none of these.
        """
        return [one for one, before in self._kept(queues) if f"{before}." == self._prefix]

    @property
    def beginning_earlier(self) -> str:
        """How names without a place begin, which an earlier version has given; empty: the connector has not one place
        only.

        Those of one of several URLs were named by its number: in which order these stood nobody knows any more.
        """
        alone = self._places is not None and len(self._places) == 1 and _OR not in self._about[1]
        return f"{self._connector}." if alone else ""

    def earlier(self, queues: Iterable[str]) -> list[KeptQueue]:
        """Return the queues that an earlier version has named without a place, if the connector has one place only.

        They are of this link only if they are among those whose messages go to its broker.
        """
        if not self.beginning_earlier:
            return []
        return [one for one, before in self._kept(queues) if before == self._connector]

    def left_behind(self, queues: Iterable[str], taken: Collection[KeptQueue] = ()) -> list[KeptQueue]:
        """Return the kept queues of this connector whose place is in no URL of it any more.

        ``taken``: those that an earlier version has named for the broker that is linked.
        """
        if self._places is None:
            return []
        found = []
        for one, before in self._kept(queues):
            place = (
                _PLACE.fullmatch(f"{before[len(self._connector) :]}.") if before.startswith(self._connector) else None
            )
            if place is not None and one not in taken and not (place[1] or "").startswith(self._places):
                found.append(one)
        return found

    def _kept(self, queues: Iterable[str]) -> Iterator[tuple[KeptQueue, str]]:
        """Yield the kept queues among these names; the text of each is the part before its topic."""
        for queue in queues:
            address, _, name = queue.partition(SEPARATOR)
            copy = kept_copy(name)
            topic = name.rpartition(self._of)[0]
            for ending in (f".{address}", f".{_digest(address)}"):
                if copy is not None and topic.endswith(ending) and is_name(address):
                    yield KeptQueue(address, name, copy), topic[: -len(ending)]


def place_of(url: str) -> str:
    """Return the host and port of the first place of a URL."""
    return _each_place(url)[0]


def places_of(urls: Iterable[str]) -> list[str]:
    """Return the places of the links of a connector: of each URL its own, in any order of those within a list."""
    found: dict[str, None] = {}
    for url in urls:
        place = _OR.join(sorted(set(_each_place(url))))
        alike = sum(one.partition(" ")[0] == place for one in found)
        found[f"{place} {alike + 1}" if alike else place] = None
    return list(found)


def _each_place(url: str) -> list[str]:
    return [one.strip().rstrip("/").lower() for one in _PLACES.findall(url) or [url]]


def _digest_of_place(place: str) -> str:
    """Return the digest of a place; of a list half of it, since the names have that of the linked broker's id, too."""
    return _digest(place)[: _DIGITS // 2 if _OR in place else _DIGITS]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
