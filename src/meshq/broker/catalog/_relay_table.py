"""The queues of other nodes that this node describes to further nodes, each under a number of its own.

A further node names the queue by that number, as it names a queue of this node.  So each node knows only the next one
on the way, and what a number stands for never changes on the way of a message (docs/design/cluster-hops.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple


class RelayPlace(NamedTuple):
    """A queue of another node: the number of the store-and-forward queue that leads there, and its number there."""

    forward: int
    number: int
    address: str


class RelayTable:
    """The numbers under which queues of other nodes are known to further nodes."""

    def __init__(self) -> None:
        self._places: dict[int, RelayPlace] = {}
        self._numbers: dict[tuple[int, int], int] = {}

    def number_of(self, forward: int, number: int) -> int:
        """Return the number under which further nodes know a queue; 0: none."""
        return self._numbers.get((forward, number), 0)

    def place_of(self, relay: int) -> RelayPlace | None:
        """Return the queue that further nodes know under a number; None: there is none, or it is gone."""
        return self._places.get(relay)

    def put(self, relay: int, place: RelayPlace) -> None:
        """Enter a queue under a number that no other queue has had."""
        self._places[relay] = place
        self._numbers[place.forward, place.number] = relay

    def drop(self, forward: int, number: int) -> None:
        """Forget a queue.  Messages that come for its number are routed anew."""
        relay = self._numbers.pop((forward, number), 0)
        known = self._places.get(relay)
        if known is not None and (known.forward, known.number) == (forward, number):
            del self._places[relay]

    def retain(self, forward: int, numbers: Collection[int]) -> None:
        """Forget all queues behind a store-and-forward queue but those with these numbers there."""
        for place in [one for one in self._places.values() if one.forward == forward]:
            if place.number not in numbers:
                self.drop(forward, place.number)

    def renumber(self, forward: int, new_number: Callable[[int], int | None]) -> None:
        """Enter the new numbers of the queues behind a store-and-forward queue; None: the queue is gone."""
        known = {relay: place for relay, place in self._places.items() if place.forward == forward}
        for place in known.values():
            self.drop(forward, place.number)
        for relay, place in known.items():
            number = new_number(place.number)
            if number is not None:
                self.put(relay, place._replace(number=number))

    def leads(self, forward: int) -> list[int]:
        """Return the numbers there of the queues behind a store-and-forward queue that further nodes know."""
        return [place.number for place in self._places.values() if place.forward == forward]

    def places(self, address: str, numbers: Collection[int]) -> Mapping[int, tuple[int, ...]]:
        """Return the queues of an address among these numbers: by store-and-forward queue, the numbers there."""
        found: dict[int, tuple[int, ...]] = {}
        for number in dict.fromkeys(numbers):
            place = self._places.get(number)
            if place is not None and place.address == address:
                found[place.forward] = (*found.get(place.forward, ()), place.number)
        return found
