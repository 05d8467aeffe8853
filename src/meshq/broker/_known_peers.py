"""What other nodes have, kept in the journal: so a restart forgets no durable queue of a node that is away.

Only durable queues are kept.  A node's first description replaces what was known of it, and each later one changes
it.  What is known of a node that has left goes with the next start, unless something waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from meshq.broker.placing._ledger import Ledger
from meshq.broker.records import DEFINITION, encode_definition
from meshq.errors import AddressFullError, ClosedError, JournalBrokenError

#: A queue of another node, as its record says it: name, address, routing and filter.
Kept = Mapping[str, Any]


@attrs.define(eq=False)
class KnownPeer:
    """Another node, by the store-and-forward queue that leads there."""

    #: The URL where it was reached.
    connector: str = ""
    #: It said goodbye.
    left: bool = False
    #: How it is gone: ``left``, ``away`` or ``down``; empty while it is linked.
    gone: str = "away"
    position: int = 0
    #: By number there: the queue, and where its record stands; 0: nowhere.
    queues: dict[int, tuple[Kept, int]] = attrs.field(factory=dict)


class KnownPeers:
    """All of them."""

    def __init__(self, ledger: Ledger, warn: Callable[[str, str], None]) -> None:
        self._ledger = ledger
        self._warn = warn
        #: By the number of the store-and-forward queue.
        self.peers: dict[int, KnownPeer] = {}

    def restore(self, values: dict[str, Any], position: int) -> None:
        """Take up a record from the journal."""
        peer = self.peers.setdefault(values["queue"], KnownPeer())
        if values["kind"] == "peer":
            peer.connector, peer.left, peer.position = values["connector"], values["left"], position
            # Nobody looks for a node where another one is.
            peer.gone = "left" if peer.left else "away" if peer.connector else "down"
        else:
            kept = {key: values[key] for key in ("name", "address", "routing", "filter")}
            peer.queues[values["number"]] = (kept, position)

    def met(self, queue: int, connector: str, *, left: bool = False) -> None:
        """A node is, or was, at a URL; and whether it has said goodbye."""
        peer = self.peers.setdefault(queue, KnownPeer())
        if (peer.connector, peer.left) != (connector, left) or not peer.position:
            values = {"kind": "peer", "queue": queue, "connector": connector, "left": left}
            peer.position = self._write(values, peer.position)
            peer.connector, peer.left = connector, left

    def replace(self, queue: int, found: Mapping[int, Kept]) -> None:
        """All queues of a node."""
        peer = self.peers.setdefault(queue, KnownPeer())
        for number in [number for number in peer.queues if number not in found]:
            self.drop(queue, number)
        for number, kept in found.items():
            self.put(queue, number, kept)

    def put(self, queue: int, number: int, kept: Kept) -> None:
        """A queue of a node."""
        peer = self.peers.setdefault(queue, KnownPeer())
        before, position = peer.queues.get(number, ({}, 0))
        if before != kept or not position:
            values = {"kind": "binding", "queue": queue, "number": number, **kept}
            peer.queues[number] = (kept, self._write(values, position))

    def drop(self, queue: int, number: int) -> None:
        """A queue of a node is gone."""
        peer = self.peers.get(queue)
        if peer is not None and (gone := peer.queues.pop(number, None)) is not None and gone[1]:
            self._ledger.doom([gone[1]])

    def forget(self, queue: int) -> None:
        """Nothing of a node is of use any more."""
        peer = self.peers.pop(queue, None)
        if peer is not None:
            positions = [peer.position, *(position for _, position in peer.queues.values())]
            self._ledger.doom([position for position in positions if position])

    def _write(self, values: dict[str, Any], position: int) -> int:
        """Write a record in place of another one; returns its position, 0 if there was no room for it."""
        try:
            return self._ledger.write(DEFINITION, [encode_definition(values)], kills=[position] if position else [])
        except AddressFullError:
            text = "the disk has no room to keep what other nodes have: a restart would forget some of it"
            self._warn("peers_not_kept", text)
            if position:
                self._ledger.doom([position])
            return 0
        except (ClosedError, JournalBrokenError):
            # The node ends and says why.
            return 0
