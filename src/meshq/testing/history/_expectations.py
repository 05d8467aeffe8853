"""The facts about queues and places that decide how strictly the checkers judge them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import attrs


def _for_ever(uid: int) -> float:
    return math.inf


@attrs.define(eq=False)
class Expectations:
    """Knowledge of queues and places: facts from before the run, and facts learnt during the run."""

    #: Queues with a consumer that took all it was given after healing.
    willing: dict[str, None] = attrs.field(factory=dict)
    #: Places that never have two consumers at a time.
    sole: dict[str, None] = attrs.field(factory=dict)
    #: Queues whose messages move from place to place, and are not numbered in the order of sending.
    odd: dict[str, None] = attrs.field(factory=dict)
    #: Queues whose messages go to the back of another place of the queue, and were never delivered then.
    redistributed: dict[str, None] = attrs.field(factory=dict)
    #: Those of them whose groups go on with their pins, also while a node hands over.
    pinned: dict[str, None] = attrs.field(factory=dict)
    #: Queues of addresses that drop what they have no room for.
    dropping: dict[str, None] = attrs.field(factory=dict)
    #: Queues of a stage in which nothing fails: what they give is judged to the moment.  All of them are odd.
    calm: dict[str, None] = attrs.field(factory=dict)
    #: The time to live of a message, in seconds.
    ttl_of: Callable[[int], float] = _for_ever
    #: Place -> the number behind which stands what may have been sent before what stands in front of it.
    behind: dict[str, int] = attrs.field(factory=dict)
    #: Nodes that are gone, and may have stored what was given back all the same.
    doubted: dict[str, None] = attrs.field(factory=dict)
    #: Places from which bridges carried messages, their own node or the next one being gone for good: there an
    #: acknowledgement of the next one may be missing.
    parted: dict[str, None] = attrs.field(factory=dict)
    #: Queue -> the node from which a bridge carries it to an address that remembers so many ids.
    forgetful: dict[str, tuple[str, int]] = attrs.field(factory=dict)
    #: A node that handed its messages over, and the node that has them since.
    handed_over: tuple[str, str] | None = None
    #: Places to which nothing may come, and why something might.
    spared: dict[str, str] = attrs.field(factory=dict)

    def drains(self, queue: str) -> None:
        """Note that from now on a consumer takes and acknowledges all messages of this queue."""
        self.willing[queue] = None

    def alone(self, places: Iterable[str]) -> None:
        """Note that none of these places ever has two consumers at a time."""
        self.sole.update(dict.fromkeys(places))

    def moves(self, *queues: str) -> None:
        """Note that messages of these queues move from place to place."""
        self.odd.update(dict.fromkeys(queues))

    def drops(self, *queues: str) -> None:
        """Note that addresses of these queues drop messages, and count them."""
        self.dropping.update(dict.fromkeys(queues))

    def redistributes(self, queue: str) -> None:
        """Note that messages of this queue go from node to node while they have no consumer."""
        self.redistributed[queue] = None

    def pins_groups(self, queue: str) -> None:
        """Note that messages of this queue follow the pins of their groups, also after a delivery that came to
        nothing."""
        self.redistributes(queue)
        self.pinned[queue] = None

    def hands_over(self, node: str, target: str) -> None:
        """Note that a node hands all its messages over to another one, delivered ones with their counts."""
        self.handed_over = node, target

    def plays_calm(self, queue: str) -> None:
        """Note that nothing fails while this queue is used."""
        self.moves(queue)
        self.calm[queue] = None

    def overtaken(self, place: str, last: int) -> None:
        """Note that messages which this place numbers from now on may have been passed by others elsewhere."""
        self.behind[place] = last

    def doubtful(self, node: str) -> None:
        """Note that messages for a node were given back, although the node may have stored some of them."""
        self.doubted[node] = None

    def parts(self, place: str) -> None:
        """Note that the node of this place, or the next one of its bridge, is gone for good."""
        self.parted[place] = None

    def forgets(self, queue: str, node: str, remembered: int) -> None:
        """Note that the target of a bridge from a queue remembers so many ids."""
        self.forgetful[queue] = (node, remembered)

    def spares(self, place: str, why: str) -> None:
        """Note that nothing may come to this place."""
        self.spared[place] = why
