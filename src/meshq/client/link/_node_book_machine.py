"""The nodes that the clients of a factory may dial: listed nodes, and nodes of which another node has told.

What a node tells says where others are, never how they are dialed: that the client's own URL and settings say.  So what
is told can't weaken a connection (docs/design/client-topology.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import attrs

from meshq.abc import HandoverTarget, NodeDescription, ToldNode
from meshq.endpoint import Endpoint
from meshq.errors import SettingsError

#: Nodes that are gone and places that have answered, of which each factory remembers so many at most.
GONE_MAX: Final = 64
ANSWERED_MAX: Final = 2_048


@attrs.frozen
class KnownTargets:
    """The endpoints of one round of attempts.

    ``nodes``: those among which the policy chooses.  ``spares``: those that are tried when none of these answers.
    ``gone``: places of nodes that have gone; each round tries one of them, after all others.  ``first``: those that are
    tried before all others.
    """

    nodes: tuple[Endpoint, ...]
    spares: tuple[Endpoint, ...] = ()
    gone: tuple[Endpoint, ...] = ()
    first: tuple[Endpoint, ...] = ()


@attrs.frozen(kw_only=True)
class ToldPlaceRules:
    """The rules by which places are dialed of which a node has told.

    ``schemes``: those of the client's own URL.  ``insecure``: plaintext to other machines is allowed.  ``options``: the
    options of each place.  ``names``: the client's own places for nodes whose connectors have these names.
    """

    schemes: frozenset[str]
    insecure: bool
    options: tuple[tuple[str, str], ...] = ()
    names: Mapping[str, Endpoint] = attrs.field(factory=dict)

    def place(self, told: str) -> Endpoint:
        """Return a place as it is dialed.

        Raises:
            SettingsError: it is not dialed.
        """
        place = Endpoint.parse(told)
        if place.scheme not in self.schemes:
            allowed = " or ".join(f"{scheme}://" for scheme in sorted(self.schemes))
            raise SettingsError("place", told, f"{allowed}, as in the client's URL")
        if place.scheme != "tls" and not (self.insecure or place.loopback):
            raise SettingsError("place", told, "plaintext to this machine only, unless insecure=True; tls:// to others")
        return attrs.evolve(place, options=self.options)


@attrs.frozen
class _View:
    """The cluster as it was told last, and the nodes that were in it before."""

    nodes: tuple[ToldNode, ...] = ()
    gone: tuple[ToldNode, ...] = ()

    @property
    def alone(self) -> bool:
        """Whether the cluster is one broker."""
        return all(one.distance == 0 for one in self.nodes)

    def told(self, nodes: Sequence[ToldNode]) -> _View:
        """Return the view after a node has described the cluster."""
        there = {one.about.node_id for one in nodes}
        before = {one.about.node_id: one for one in self.nodes}
        # Whoever was not in the cluster before tells of another cluster, in which nobody is missing.
        same = any(one.distance == 0 and one.about.node_id in before for one in nodes)
        missing = [one for one in self.nodes if same and one.about.node_id not in there]
        left = {one.about.node_id: one for one in (*self.gone, *missing) if one.about.node_id not in there}
        return _View(tuple(nodes), tuple(left.values())[-GONE_MAX:])


class NodeBook:
    """The nodes that the clients of a factory know: the cluster as described last, gone nodes, and places of answers.

    Threads may share it: whatever changes is replaced as a whole.
    """

    __slots__ = ("_answered", "_failed", "_rules", "_told_at", "_view")

    def __init__(self, rules: ToldPlaceRules) -> None:
        self._rules = rules
        self._view = _View()
        # Place -> the node that answered there last; the newest answer last.
        self._answered: dict[Endpoint, bytes] = {}
        # Those of these places at which an attempt has failed since.
        self._failed: frozenset[Endpoint] = frozenset()
        # Where a node says that it is, without options -> the node.
        self._told_at: dict[str, bytes] = {}

    @property
    def informed(self) -> bool:
        """Whether a node has told anything."""
        return bool(self._view.nodes)

    def told(self, nodes: Sequence[ToldNode]) -> list[str]:
        """Note all that a node tells; return, as text, which nodes are not dialed and why."""
        self._view = self._view.told(nodes)
        self._told_at = {one.about.primary: one.about.node_id for one in self._view.nodes}
        named = ((self._rules.names.get(one.about.connector), one) for one in self._view.nodes)
        self._told_at.update((str(bare(place)), one.about.node_id) for place, one in named if place is not None)
        refused = []
        for one in self._view.nodes:
            try:
                self._told_place(one)
            except SettingsError as error:
                refused.append(f"node {one.about.name!r} ({one.about.node_id.hex()}) is not dialed: {error}")
        return refused

    def attached(self, place: Endpoint, node_id: bytes) -> None:
        """Note which node has answered at a place."""
        answered = {one: node for one, node in self._answered.items() if one != place}
        answered[place] = node_id
        if len(answered) > ANSWERED_MAX:
            del answered[next(iter(answered))]
        self._answered = answered
        if self._failed:
            self._failed = self._failed.intersection(answered) - {place}

    def failed(self, place: Endpoint) -> None:
        """Note that an attempt at a place has failed: its node may be elsewhere by now, as it says itself."""
        if place in self._answered:
            self._failed |= {place}

    def node_at(self, place: Endpoint) -> bytes:
        """Return the id of the node at a place; empty: it is not known."""
        return self._answered.get(place) or self._told_at.get(str(bare(place)), b"")

    def places_of(
        self, target: HandoverTarget, listed: Sequence[Endpoint], last: Endpoint | None
    ) -> tuple[Endpoint, ...]:
        """Return the places of a node to which a client was sent, the one of its backup last."""
        known = next((one.about for one in self._view.nodes if one.about.node_id == target.node_id), None)
        about = NodeDescription(
            node_id=target.node_id,
            name=target.name,
            primary=target.place,
            connector=known.connector if known else "",
            backup=known.backup if known else "",
        )
        places = self._places([ToldNode(about=about, distance=1)], listed, last)
        return tuple(dict.fromkeys(places[target.node_id]))

    def known(self, listed: Sequence[Endpoint], last: Endpoint | None) -> KnownTargets:
        """Return the places of the next round.

        ``listed``: those of the client's URL, or that are announced.  ``last``: where the client was connected last.
        """
        view = self._view
        there, gone = self._places(view.nodes, listed, last), self._places(view.gone, listed, last)
        nodes = [places[0] for places in there.values() if places]
        if view.alone:
            # A broker in no cluster says nothing about the others of a list.
            known = {place for places in (*there.values(), *gone.values()) for place in places}
            others = [place for place in listed if place in nodes or place not in known]
            nodes = [*others, *nodes]
        spares = [*listed, *(place for places in there.values() for place in places)]
        left = [place for places in gone.values() for place in places]
        chosen = dict.fromkeys(nodes)
        second = dict.fromkeys(place for place in spares if place not in chosen)
        third = dict.fromkeys(place for place in left if place not in chosen and place not in second)
        first = tuple(dict.fromkeys(self._of_last(there, last)))
        return KnownTargets(nodes=tuple(chosen), spares=tuple(second), gone=tuple(third), first=first)

    def _of_last(self, there: Mapping[bytes, Sequence[Endpoint]], last: Endpoint | None) -> Sequence[Endpoint]:
        """The places of the node that the client was connected to last, if that node has a backup: both come first."""
        if last is None:
            return ()
        node_id = self.node_at(last)
        backed = any(one.about.backup and one.about.node_id == node_id for one in self._view.nodes)
        return there.get(node_id, ()) if backed else ()

    def _places(
        self, nodes: Sequence[ToldNode], listed: Sequence[Endpoint], last: Endpoint | None
    ) -> dict[bytes, list[Endpoint]]:
        """Return the places of nodes: where this client was last, then where a node has answered, the newest answer
        first, then where the node says that it is, and then where an attempt has failed since the answer.
        """
        found: dict[bytes, list[Endpoint]] = {one.about.node_id: [] for one in nodes}
        for place, node_id in reversed(self._answered.items()):
            if node_id in found:
                found[node_id].append(place)
        own = {bare(place): place for place in reversed(listed)}
        for one in nodes:
            with suppress(SettingsError):
                # Why a place is not dialed was said when it was told.
                told = self._told_place(one)
                if told is not None:
                    is_own = one.about.connector in self._rules.names
                    found[one.about.node_id].append(told if is_own else own.get(bare(told), told))
            with suppress(SettingsError):
                if one.about.backup:
                    backup = self._rules.place(one.about.backup)
                    found[one.about.node_id].append(own.get(bare(backup), backup))
        for places in found.values():
            places.sort(key=lambda place: (place != last, place in self._failed))
        return found

    def _told_place(self, one: ToldNode) -> Endpoint | None:
        own = self._rules.names.get(one.about.connector)
        if own is not None:
            return own
        return self._rules.place(one.about.primary) if one.about.primary else None


def bare(place: Endpoint) -> Endpoint:
    """Return a place without its options."""
    return attrs.evolve(place, options=()) if place.options else place
