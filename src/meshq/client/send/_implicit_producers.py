"""The producers of ``client.send`` and ``client.send_many``: one for each address that was used lately."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from meshq.address import parse_place
from meshq.client.outgoing._outbox import Outbox
from meshq.client.session._client_context import ClientContext
from meshq.errors import MeshqError

#: Addresses whose producer is kept.
IMPLICIT_PRODUCERS_MAX: Final = 64


class _Kept:
    """The owner of one such producer, which drops the producer when it fails."""

    __slots__ = ("_address", "_outboxes")

    def __init__(self, outboxes: OrderedDict[str, Outbox], address: str) -> None:
        self._outboxes = outboxes
        self._address = address

    def producer_opened(self) -> None:
        """Note that the broker has opened the producer's channel."""

    def producer_failed(self, error: MeshqError) -> None:
        """Drop the producer."""
        self._outboxes.pop(self._address, None)


class ImplicitProducers:
    """The producers of one client's plain sends, by address."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._facts = context.session.facts
        self._send_queue = context.session.send_queue
        # The least recently used one first.
        self._outboxes: OrderedDict[str, Outbox] = OrderedDict()
        #: The window of unconfirmed messages by address, as a bridge has set it.
        self.windows: dict[str, int] = {}

    def to(self, address: str) -> Outbox:
        """The producer to an address, opened now if there is none.

        Raises:
            SettingsError: the address is no name.
            UsageError, ClosedError, ConnectionBrokenError: the client is not open.
        """
        outbox = self._outboxes.get(address) if type(address) is str else None
        if outbox is not None and self._facts.failure is None:
            self._outboxes.move_to_end(address)
            return outbox
        self._context.check()
        parse_place(address)
        kept = _Kept(self._outboxes, address)
        outbox = Outbox(address, self._context.token(), kept, window=self.windows.get(address, 0))
        self._outboxes[address] = outbox
        if len(self._outboxes) > IMPLICIT_PRODUCERS_MAX:
            _, oldest = self._outboxes.popitem(last=False)
            self._send_queue.close(oldest)
        self._send_queue.add(outbox)
        return outbox
