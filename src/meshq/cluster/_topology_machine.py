"""The nodes of a cluster: descriptions by the nodes themselves and by others go in, the known nodes come out.

States are compared, never events: whoever tells something tells all that it knows, anew at each change.
The rules stand in docs/design/topology.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from meshq.abc import NodeDescription, ToldNode

#: Nodes that are known at most.
NODES_MAX: Final = 1_024
#: Who is told to be farther away is not known: in a cluster with circles, what is gone would be told round and round.
DISTANCE_MAX: Final = 16


@attrs.frozen
class NodeChange:
    """A change of a known node.

    ``reason``: ``joined``; ``left``, ``away`` or ``down``, the ways to be gone; ``restarted`` (another life of it),
    ``moved`` (another connector) or ``backup`` (another backup, or none any more).
    """

    reason: str
    node: ToldNode


@attrs.define
class _Teller:
    """The node at the other end of a link, with all that it says."""

    node_id: bytes
    #: Rises with each other node, or life of a node, that is met over a link.
    met: int
    about: NodeDescription
    #: What it says of others; None: it says nothing of others.
    told: dict[bytes, ToldNode] | None = None


@attrs.frozen
class _Known:
    """A known node: its description, whether it is linked here, and hearsay of it, the best first."""

    about: NodeDescription
    linked: bool
    hearsay: tuple[tuple[bytes, ToldNode], ...]


class TopologyMachine:
    """The nodes of a cluster as one of them knows them.  A teller is one link to or from another node, by any key."""

    __slots__ = ("_backups", "_how", "_known", "_last", "_met", "_own", "_reported", "_tellers", "refused")

    def __init__(self, own: NodeDescription) -> None:
        self._own = own
        self._tellers: dict[object, _Teller] = {}
        self._met = 0
        # Made anew after a change; None: something has changed.
        self._known: dict[bytes, _Known] | None = None
        # In what way nodes went whose link has ended.
        self._how: dict[bytes, str] = {}
        # What ``changes`` has told.
        self._reported: dict[bytes, ToldNode] = {}
        # By node the backup that ``changed_backups`` has told.
        self._backups: dict[bytes, str] = {}
        # The others, as they were known when there were others.
        self._last: dict[bytes, NodeDescription] = {}
        #: Nodes that are told of, and not known because there are too many.
        self.refused: int = 0

    # -- in

    @property
    def own(self) -> NodeDescription:
        """The description of the node by itself."""
        return self._own

    def describe(self, *, primary: str, backup: str = "") -> None:
        """Set where this node, and its backup, are reached: the version rises if that is something new."""
        if (primary, backup) != (self._own.primary, self._own.backup):
            version = self._own.version + 1
            self._own = attrs.evolve(self._own, version=version, primary=primary, backup=backup)

    def leave(self, successor: bytes, target: bytes) -> None:
        """Set that this node leaves, its successor, and to whom it hands over now; empty: there is none."""
        own = attrs.evolve(self._own, leaving=True, successor=successor, target=target)
        if own != self._own:
            self._own = attrs.evolve(own, version=own.version + 1)

    def meet(self, teller: object, about: NodeDescription) -> None:
        """Note the node at the other end of a link, which says nothing of others."""
        before = self._tellers.get(teller)
        if before is None or before.node_id != about.node_id or before.told is None:
            self._hear(teller, about, None)

    def tell(self, teller: object, nodes: Sequence[ToldNode]) -> None:
        """Replace all that a teller has said; the node at distance 0 is the teller itself."""
        for one in nodes:
            if one.distance == 0 and one.about.node_id != self._own.node_id:
                self._hear(teller, one.about, {two.about.node_id: two for two in nodes if two.distance > 0})
                return

    def part(self, teller: object, how: str) -> bool:
        """Note that a link has ended, and ``how``: ``left``, ``away``, ``down``.  Return whether there was one."""
        gone = self._tellers.pop(teller, None)
        if gone is not None:
            self._how[gone.node_id] = how
            self._known = None
        return gone is not None

    def _hear(self, teller: object, about: NodeDescription, told: dict[bytes, ToldNode] | None) -> None:
        before = self._tellers.get(teller)
        same = before is not None and (before.about.node_id, before.about.instance) == (about.node_id, about.instance)
        if before is not None and same:
            met = before.met
        else:
            self._met = met = self._met + 1
        self._tellers[teller] = _Teller(about.node_id, met, about, told)
        self._how.pop(about.node_id, None)
        self._known = None

    # -- out

    def nodes(self) -> list[ToldNode]:
        """Return the known nodes: the node itself first, then the nearest."""
        return list(self.told_to(b""))

    def told_to(self, asker: bytes) -> list[ToldNode]:
        """Return the nodes of which another node is told: none that only that node tells of, or is the witness of."""
        found = [ToldNode(about=self._own)]
        for known in self._compared().values():
            if known.linked:
                found.append(ToldNode(about=known.about, distance=1))
                continue
            for teller, told in known.hearsay:
                witness = told.witness or teller
                if asker not in (teller, witness):
                    found.append(ToldNode(about=known.about, distance=told.distance + 1, witness=witness))
                    break
        return sorted(found, key=_by_distance)

    def described(self, node_id: bytes) -> NodeDescription | None:
        """Return the description of another node; None: it is not known."""
        known = self._compared().get(node_id)
        return known.about if known is not None else None

    def places(self, *, last: bool = True) -> list[NodeDescription]:
        """Return the other nodes that may be dialed.

        ``last``: if no other node is known any more, those that were known last and have not said goodbye.
        """
        known = self._compared()
        if known or not last:
            return [one.about for one in known.values()]
        return [about for node_id, about in self._last.items() if self._how.get(node_id) != "left"]

    def changes(self) -> list[NodeChange]:
        """Return the changes since the last call."""
        now = {one.about.node_id: one for one in self.nodes() if one.distance}
        before, self._reported = self._reported, now
        found = [
            NodeChange(self._how.get(node_id, "away"), one) for node_id, one in before.items() if node_id not in now
        ]
        for node_id, one in now.items():
            reason = _reason(before.get(node_id), one)
            if reason is not None:
                found.append(NodeChange(reason, one))
        # How a node has left matters as long as it may be dialed.
        self._how = {node_id: how for node_id, how in self._how.items() if node_id in self._last}
        return found

    def changed_backups(self) -> list[NodeDescription]:
        """Return the nodes with another backup than at the last call; the node itself is one of them."""
        now = [one.about for one in self.nodes()]
        before, self._backups = self._backups, {about.node_id: about.backup for about in now}
        return [about for about in now if about.backup != before.get(about.node_id, "")]

    # -- what is believed

    def _compared(self) -> dict[bytes, _Known]:
        """Compare all that is said."""
        if self._known is None:
            direct = self._direct()
            hearsay = self._hearsay()
            names = sorted({*direct, *hearsay}, key=lambda node_id: (node_id not in direct, node_id))
            self.refused = max(0, len(names) - NODES_MAX + 1)
            self._known = {
                node_id: _weigh(direct.get(node_id), hearsay.get(node_id, ())) for node_id in names[: NODES_MAX - 1]
            }
            if self._known:
                self._last = {node_id: one.about for node_id, one in self._known.items()}
        return self._known

    def _direct(self) -> dict[bytes, NodeDescription]:
        """Return the descriptions of nodes by themselves, over links: of two lives the life that was met last."""
        found: dict[bytes, _Teller] = {}
        for teller in self._tellers.values():
            best = found.get(teller.node_id)
            if best is None or _weight(teller) > _weight(best):
                found[teller.node_id] = teller
        newest = {node_id: teller.about for node_id, teller in found.items()}
        for teller in self._tellers.values():
            about = newest[teller.node_id]
            if teller.about.instance == about.instance and teller.about.version > about.version:
                newest[teller.node_id] = teller.about
        newest.pop(self._own.node_id, None)
        return newest

    def _hearsay(self) -> dict[bytes, list[tuple[bytes, ToldNode]]]:
        """Return the hearsay of nodes, with the ids of its tellers; the newest description first, then the nearest."""
        speakers = {teller.node_id for teller in self._tellers.values() if teller.told is not None}
        found: dict[bytes, list[tuple[bytes, ToldNode]]] = {}
        for teller in self._tellers.values():
            for node_id, told in (teller.told or {}).items():
                # The one author of what is said of a node is the node: nobody tells this one who it is.
                if node_id in (self._own.node_id, teller.node_id) or told.distance >= DISTANCE_MAX:
                    continue
                # Who is linked here says itself with whom it is linked.
                if told.distance > 1 and (told.witness == self._own.node_id or told.witness in speakers):
                    continue
                found.setdefault(node_id, []).append((teller.node_id, told))
        for told_of in found.values():
            told_of.sort(key=_by_version)
        return found


def _weigh(direct: NodeDescription | None, hearsay: Sequence[tuple[bytes, ToldNode]]) -> _Known:
    """Choose between the word of a node and the hearsay of it."""
    about = direct if direct is not None else hearsay[0][1].about
    for _, told in hearsay:
        # Of one life of a node the highest version counts, whoever passes it on; of two lives the node's own word.
        if told.about.instance == about.instance and told.about.version > about.version:
            about = told.about
    return _Known(about, direct is not None, tuple(hearsay))


def _weight(teller: _Teller) -> tuple[bool, int]:
    return bool(teller.about.instance), teller.met


def _by_version(said: tuple[bytes, ToldNode]) -> tuple[int, int, bytes]:
    teller, told = said
    return -told.about.version, told.distance, teller


def _by_distance(one: ToldNode) -> tuple[int, bytes]:
    return one.distance, one.about.node_id


def _reason(before: ToldNode | None, now: ToldNode) -> str | None:
    """Return why two descriptions of a node differ; None: nothing that matters has changed."""
    if before is None:
        return "joined"
    old, new = before.about, now.about
    if old.instance and new.instance and old.instance != new.instance:
        return "restarted"
    if old.primary != new.primary:
        return "moved"
    return "backup" if old.backup != new.backup else None
