"""The queues of other nodes, kept in the journal: a restart forgets no durable queue of a node that is away.

Only durable queues are kept, and such as further nodes know, which may have messages for them.  A node's first
description replaces the known queues, and each later one changes them.  The queues of a node that has left are
forgotten at the next start, unless messages wait for it, here or perhaps at a further node.

Queues are known by their numbers, which a store gives once.  A node whose store was begun anew gives the same numbers
to other queues.  Each time that happens a *generation* begins: waiting messages get the new numbers of their queues, by
a record that is written before the node's own record names the generation.  A record of a queue names its generation,
and a record of another generation than the node's is not used.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs

from meshq.broker.catalog._relay_table import RelayPlace, RelayTable
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.records import DEFINITION, encode_definition
from meshq.errors import AddressFullError, ClosedError, DamagedError, JournalBrokenError

if TYPE_CHECKING:
    from meshq.broker.queue._run import QueueRun

#: A queue of another node, as its record says it: name, address, routing and filter; of a queue of a further node
#: the way to it and the name of that node.
Kept = Mapping[str, Any]
#: What a queue of another node is told apart by, whatever its number: its name, its address, and the way to it.
Names = tuple[str, str, str]
#: The keys of a record that say what a queue is.
_KEPT: Final = ("name", "address", "routing", "filter", "path", "node_name", "relay", "durable")
#: In memory the number of a queue that is nowhere any more: more than any queue has.
NOWHERE: Final = 2**32
# An old number of a queue and its new one; 0: it is nowhere.
_PAIR: Final = struct.Struct("<II")
#: Queues of which one record says their new numbers: as many as a definition surely has room for.
_PAIRS_MAX: Final = 400


class KeptQueue(NamedTuple):
    """A queue of another node, where its record stands, and in which turn it was known; 0: nowhere."""

    kept: Kept
    position: int
    generation: int


@attrs.define(eq=False)
class Renumbered:
    """The new numbers of the queues that messages up to ``last`` are for, by the old numbers."""

    last: int
    numbers: dict[int, int] = attrs.field(factory=dict)
    positions: list[int] = attrs.field(factory=list)
    #: Whether the journal has all of the numbers.
    written: bool = False


@attrs.define(eq=False)
class KnownPeer:
    """Another node, by the store-and-forward queue that leads there."""

    #: The URL where it was reached.
    connector: str = ""
    #: It said goodbye.
    left: bool = False
    #: Whether it had handed over all before that, so that nothing that waits for it will be stored there.
    over: bool = False
    #: How it is gone: ``left``, ``away`` or ``down``; empty while it is linked.
    gone: str = "away"
    #: What its store is called, empty if it never said so; and how often it was begun anew since.
    store: bytes = b""
    generation: int = 0
    #: What the link's name is made of besides; empty until its numbers had to begin anew.
    link: bytes = b""
    position: int = 0
    #: By number there.
    queues: dict[int, KeptQueue] = attrs.field(factory=dict)
    #: By turn: what still waits for it from before that.
    renumbered: dict[int, Renumbered] = attrs.field(factory=dict)


class KnownPeers:
    """All of them."""

    def __init__(self, release_queue: ReleaseQueue, relays: RelayTable, warn: Callable[[str, str], None]) -> None:
        self._release_queue = release_queue
        self._relays = relays
        self._warn = warn
        #: By the number of the store-and-forward queue.
        self.peers: dict[int, KnownPeer] = {}

    def restore(self, values: dict[str, Any], position: int) -> None:
        """Take up a record from the journal."""
        peer = self.peers.setdefault(values["queue"], KnownPeer())
        if values["kind"] == "peer":
            peer.connector, peer.left, peer.over = values["connector"], values["left"], values["over"]
            peer.position = position
            peer.store, peer.generation, peer.link = values["store"], values["turn"], values["link"]
            # Nobody looks for a node where another one is.
            peer.gone = "left" if peer.left else "away" if peer.connector else "down"
        elif values["kind"] == "renumbered":
            renumbered = peer.renumbered.setdefault(values["turn"], Renumbered(values["last"], written=True))
            renumbered.positions.append(position)
            try:
                renumbered.numbers.update((old, new or NOWHERE) for old, new in _PAIR.iter_unpack(values["numbers"]))
            except struct.error as error:
                found = f"{len(values['numbers'])} bytes"
                raise DamagedError("journal", position, "pairs of numbers", found) from error
        else:
            kept = {key: values[key] for key in _KEPT}
            # There may be one of an earlier turn.
            self._drop(values["queue"], values["number"])
            peer.queues[values["number"]] = KeptQueue(kept, position, values["turn"])

    def restored(self) -> None:
        """Drop the records of other generations, after all records are read."""
        for queue, peer in self.peers.items():
            for number in [number for number, known in peer.queues.items() if known.generation != peer.generation]:
                self._drop(queue, number)
            for number, known in peer.queues.items():
                if known.kept["relay"]:
                    self._relays.put(known.kept["relay"], RelayPlace(queue, number, known.kept["address"]))
            for generation in [generation for generation in peer.renumbered if generation > peer.generation]:
                # The node ended before the turn began.
                self._release_queue.doom(peer.renumbered.pop(generation).positions)

    def renumber(self, queue: int, view: QueueRun) -> None:
        """A run that waits for a node is taken up from the journal: the numbers that it is for now."""
        peer = self.peers.get(queue)
        if peer is not None:
            for _, renumbered in sorted(peer.renumbered.items()):
                _renumber(view, renumbered)

    def begun(
        self,
        queue: int,
        store: bytes,
        told: Mapping[int, Names],
        there: Mapping[Names, int],
        waiting: tuple[int, Iterable[QueueRun]],
    ) -> None:
        """A node has a store of this name.  If it is another one than before, what waits is for the queues of the same
        names from now on, or for none.

        ``told``: what this life knows of the queues that the node had; ``there``: what it has.  ``waiting``: the last
        number that was given for it, and the runs that wait.
        """
        peer = self.peers.setdefault(queue, KnownPeer())
        last, views = waiting[0], list(waiting[1])
        first = min((view.first for view in views), default=last + 1)
        for generation in [generation for generation, one in peer.renumbered.items() if one.last < first]:
            self._release_queue.doom(peer.renumbered.pop(generation).positions)
        if peer.store == store:
            return
        if peer.store:
            peer.generation += 1
            names = _names_of(peer, told)
            wanted = dict.fromkeys(number for view in views for number in view.remote)
            if wanted:
                numbers = {old: there.get(names[old], NOWHERE) if old in names else NOWHERE for old in wanted}
                renumbered = peer.renumbered[peer.generation] = Renumbered(last, numbers)
                for view in views:
                    _renumber(view, renumbered)
                # Before their old records go: a crash in between leaves everything as it was.
                self._write_turns(queue, peer)
            for number in list(peer.queues):
                self._drop(queue, number)
            self._relays.renumber(queue, lambda old: there.get(names[old]) if old in names else None)
        peer.store = store
        self._say(queue, peer)

    def lacks(
        self, queue: int, store: bytes, told: Mapping[int, Names], there: Collection[Names], views: Iterable[QueueRun]
    ) -> bool:
        """Whether a node has begun another store, and does not know yet the queues of further nodes for which messages
        wait here, or may come.  ``told``, ``there``: as for ``begun``."""
        peer = self.peers.get(queue)
        if peer is None or not peer.store or peer.store == store:
            return False
        names = _names_of(peer, told)
        wanted = {*self._relays.leads(queue), *(number for view in views for number in view.remote)}
        return any(name[2] and name not in there for number in wanted if (name := names.get(number)) is not None)

    def _write_turns(self, queue: int, peer: KnownPeer) -> bool:
        """Write the new numbers of every turn that the journal lacks; returns whether it has all of them then."""
        return all(
            renumbered.written or self._write_renumbered(queue, generation, renumbered)
            for generation, renumbered in sorted(peer.renumbered.items())
        )

    def _write_renumbered(self, queue: int, generation: int, renumbered: Renumbered) -> bool:
        """Write the new numbers of a turn, all of them or none; returns whether the journal has them."""
        pairs = [(old, new % NOWHERE) for old, new in renumbered.numbers.items() if old != NOWHERE]
        values = {"kind": "renumbered", "queue": queue, "turn": generation, "last": renumbered.last}
        for at in range(0, len(pairs), _PAIRS_MAX):
            numbers = b"".join([_PAIR.pack(*pair) for pair in pairs[at : at + _PAIRS_MAX]])
            position = self._write({**values, "numbers": numbers}, 0, vital=True)
            if not position:
                self._release_queue.doom(renumbered.positions)
                renumbered.positions = []
                return False
            renumbered.positions.append(position)
        renumbered.written = True
        return True

    def met(self, queue: int, connector: str, *, left: bool = False) -> None:
        """A node is, or was, at a URL; and whether it has said goodbye."""
        peer = self.peers.setdefault(queue, KnownPeer())
        if (peer.connector, peer.left) != (connector, left) or not peer.position:
            peer.connector, peer.left, peer.over = connector, left, peer.over and left
            self._say(queue, peer)

    def handed_over(self, queue: int) -> None:
        """Note that a node which has left had handed over all to a successor."""
        peer = self.peers.get(queue)
        if peer is not None and peer.left and not peer.over:
            peer.over = True
            self._say(queue, peer)

    def _say(self, queue: int, peer: KnownPeer) -> None:
        """Write the record of a node, after the new numbers of each turn that it speaks of.

        Where the disk has no room for those, the record of the turn before stays: the next life finds another store
        than it knows, and none of the old numbers' names, and what waits goes by its address.
        """
        if not self._write_turns(queue, peer):
            return
        values = {
            "kind": "peer",
            "queue": queue,
            "connector": peer.connector,
            "left": peer.left,
            "over": peer.over,
            "store": peer.store,
            "turn": peer.generation,
            "link": peer.link,
        }
        # Without the turn what waits would be for other queues in the next life, and lost with the old link's name.
        vital = peer.generation > 0 or bool(peer.link)
        peer.position = self._write(values, peer.position, vital=vital)

    def link_anew(self, queue: int, link: bytes) -> None:
        """Have the numbers of a node's link begin under another name."""
        peer = self.peers.setdefault(queue, KnownPeer())
        peer.link = link
        self._say(queue, peer)

    def replace(self, queue: int, found: Mapping[int, Kept]) -> None:
        """All queues of a node that are kept."""
        peer = self.peers.setdefault(queue, KnownPeer())
        for number in [number for number in peer.queues if number not in found]:
            self.drop(queue, number)
        for number, kept in found.items():
            self.put(queue, number, kept)

    def put(self, queue: int, number: int, kept: Kept) -> None:
        """A queue of a node."""
        peer = self.peers.setdefault(queue, KnownPeer())
        before = peer.queues.get(number, KeptQueue({}, 0, 0))
        kept = {**kept, "relay": self._relays.number_of(queue, number)}
        if before.kept != kept or not before.position:
            values = {"kind": "binding", "queue": queue, "number": number, "turn": peer.generation, **kept}
            peer.queues[number] = KeptQueue(kept, self._write(values, before.position), peer.generation)

    def relay(self, relay: int, place: RelayPlace, kept: Kept) -> int:
        """Keep the number by which further nodes know a queue of a node; return the position of its record, or 0.

        ``kept``: what the queue is, unless that is kept already.
        """
        self._relays.put(relay, place)
        peer = self.peers.get(place.forward)
        known = peer.queues.get(place.number) if peer is not None else None
        self.put(place.forward, place.number, known.kept if known is not None else kept)
        return self.peers[place.forward].queues[place.number].position

    def drop(self, queue: int, number: int) -> None:
        """A queue of a node is gone."""
        self._relays.drop(queue, number)
        self._drop(queue, number)

    def _drop(self, queue: int, number: int) -> None:
        peer = self.peers.get(queue)
        if peer is not None and (gone := peer.queues.pop(number, None)) is not None and gone.position:
            self._release_queue.doom([gone.position])

    def forget(self, queue: int) -> None:
        """Nothing of a node is of use any more."""
        self._relays.retain(queue, ())
        peer = self.peers.pop(queue, None)
        if peer is not None:
            positions = [peer.position, *(known.position for known in peer.queues.values())]
            positions += [position for one in peer.renumbered.values() for position in one.positions]
            self._release_queue.doom([position for position in positions if position])

    def _write(self, values: dict[str, Any], position: int, *, vital: bool = False) -> int:
        """Write a record in place of another one; returns its position, 0 if there was no room for it."""
        deletes = [position] if position else []
        try:
            return self._release_queue.write(DEFINITION, [encode_definition(values)], deletes=deletes, vital=vital)
        except AddressFullError:
            text = "the disk has no room to keep what other nodes have: a restart would forget some of it"
            self._warn("peers_not_kept", text)
            if position:
                self._release_queue.doom([position])
            return 0
        except (ClosedError, JournalBrokenError):
            # The node ends and says why.
            return 0


def _names_of(peer: KnownPeer, told: Mapping[int, Names]) -> dict[int, Names]:
    return {**{number: _names(known.kept) for number, known in peer.queues.items()}, **told}


def _names(kept: Kept) -> Names:
    return kept["name"], kept["address"], kept.get("path", "")


def _renumber(view: QueueRun, renumbered: Renumbered) -> None:
    if view.first <= renumbered.last:
        view.remote = tuple(renumbered.numbers.get(number, number) for number in view.remote)
