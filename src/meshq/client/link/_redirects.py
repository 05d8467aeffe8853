"""The redirects of one client: by its own rules it goes where a balancer of a broker sends it."""

from __future__ import annotations

from typing import Final

import attrs

from meshq.client.calls._session_facts import SessionFacts
from meshq.client.link._node_book_machine import KnownTargets
from meshq.endpoint import Endpoint, told_place
from meshq.errors import SettingsError, UseAnotherServerError
from meshq.wire import Close

#: Redirects that a client follows in one attempt to connect.
REDIRECTS_MAX: Final = 3


class Redirects:
    """The redirects of one client.  ``facts``: those of its session, which tells nodes who has redirected it."""

    __slots__ = ("_again", "_facts", "_handed", "_handovers", "_place", "_returns", "_sender", "_sent_away", "hops")

    def __init__(self, facts: SessionFacts) -> None:
        self._facts = facts
        #: The redirects since the attempt began.
        self.hops: int = 0
        # Where the client was sent and is no more, until that place has been tried once more: only that node can
        # resume the session.  And whether this attempt is that one.
        self._place: Endpoint | None = None
        self._again: Endpoint | None = None
        self._returns = False
        # The node that sends the client to the target of its handover, and whether a balancer had sent the client to
        # that node; the places of the target; and whether this attempt is at one of them after a balancer's redirect.
        self._sender = b""
        self._sent_away = False
        self._handovers: tuple[Endpoint, ...] = ()
        self._handed = False

    @property
    def redirected(self) -> bool:
        """Whether the client is, or tries to be, where a node has sent it, and belongs where its own URL leads."""
        return self.hops > 0 or self._returns or self._handed

    def sent_away(self, node_id: bytes) -> None:
        """Note that a node sends the client to the target of its handover."""
        self._sender, self._sent_away = node_id, self.redirected

    def begin(self, place: Endpoint | None) -> None:
        """Begin an attempt at a place of the client's own, or for its session once more at that of its last node."""
        self.hops = 0
        self._returns = place is not None and place == self._place
        self._place = None
        handed_over = place in self._handovers
        self._handed = self._sent_away and handed_over
        # At the handover's target is what the client has at stake: a balancer there is told that it was sent there.
        self._facts.visited, self._facts.only_resumes = self._sender if handed_over else b"", self._returns

    def lost(self, place: Endpoint | None, *, resumable: bool) -> None:
        """Note the loss of the link to a place.  ``resumable``: the node is not known to leave, and has the session."""
        self._place = self._again = place if self.redirected and resumable else None

    def first(self, known: KnownTargets) -> KnownTargets:
        """Return the targets of a round: once after a loss, the place where the client was sent comes first."""
        place, self._again = self._again, None
        # Also the places of a node that has a backup come first; a handover is over when the client has a session.
        self._handovers = known.first if self._facts.target is not None else ()
        return known if place is None or known.first else attrs.evolve(known, first=(place,))

    def follow(self, sender: Endpoint, close: Close) -> Endpoint:
        """Return the place to which a node sends the client, as it is dialed: with the options of that node.

        The node has proved itself, so that nobody else can send the client anywhere.  What else has to hold at a place
        (its certificate, plaintext only where it is allowed) is checked where it is dialed, as with a place of the URL.

        Raises:
            UseAnotherServerError: the client has been sent on too often in this attempt, or to a weaker transport.
        """
        self.hops += 1
        if self.hops > REDIRECTS_MAX:
            text = f"{sender} is the {self.hops}th that sends this client on: brokers send it round"
            raise UseAnotherServerError(text)
        self._facts.visited += close.node_id
        try:
            place = Endpoint.parse(close.target_place)
        except SettingsError as error:
            raise UseAnotherServerError(f"{sender} sends this client to what is no place: {error}") from error
        if not told_place(close.target_place):
            raise UseAnotherServerError(f"{sender} sends this client to {str(place)!r}, which nobody can dial")
        if place.scheme == "inproc" or (sender.scheme == "tls" and place.scheme != "tls"):
            raise UseAnotherServerError(f"{sender} sends this client to {place}, which is less safe: not followed")
        return attrs.evolve(place, options=sender.options)
