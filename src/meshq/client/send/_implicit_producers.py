"""The producers of ``client.send`` and ``client.send_many``: one for each address that was used lately."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from meshq.address import parse_place
from meshq.client.outgoing._outbox import Outbox
from meshq.client.session._client_context import ClientContext
from meshq.errors import MeshqError

#: Addresses whose producer is kept, and more only while something is under way to each of them.
IMPLICIT_PRODUCERS_MAX: Final = 64


class _Kept:
    """The owner of one such producer, which drops the producer when it fails."""

    __slots__ = ("_outboxes", "outbox")

    def __init__(self, outboxes: OrderedDict[str, Outbox]) -> None:
        self._outboxes = outboxes
        #: The producer, as soon as there is one.
        self.outbox: Outbox | None = None

    def producer_opened(self) -> None:
        """Note that the broker has opened the producer's channel."""

    def producer_failed(self, error: MeshqError) -> None:
        """Drop the producer, unless another one has taken its place."""
        outbox = self.outbox
        if outbox is not None and self._outboxes.get(outbox.address) is outbox:
            del self._outboxes[outbox.address]


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
        self._make_place()
        kept = _Kept(self._outboxes)
        outbox = kept.outbox = Outbox(address, self._context.token(), kept, window=self.windows.get(address, 0))
        self._outboxes[address] = outbox
        self._send_queue.add(outbox)
        return outbox

    def _make_place(self) -> None:
        """Close the least recently used producers that are too many and have nothing under way.

        What is sent next to such an address would overtake what is under way: the broker takes it from another
        producer.
        """
        outboxes = self._outboxes
        for _ in range(min(len(outboxes), IMPLICIT_PRODUCERS_MAX)):
            if len(outboxes) < IMPLICIT_PRODUCERS_MAX:
                return
            address, oldest = next(iter(outboxes.items()))
            if oldest.unsettled:
                # It is in use; the next look begins with the ones behind it.
                outboxes.move_to_end(address)
            else:
                del outboxes[address]
                self._send_queue.close(oldest)

    def set_window(self, address: str, window: int) -> int:
        """Set the window of an address, and return it: a producer with messages under way keeps the one that the target
        was told, if that is smaller."""
        outbox = self._outboxes.get(address)
        if outbox is not None and outbox.window != window:
            if outbox.unsettled:
                window = min(window, outbox.window or window)
            else:
                del self._outboxes[address]
                self._send_queue.close(outbox)
        self.windows[address] = window
        return window
