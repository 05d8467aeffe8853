"""The producers of ``client.send`` and ``client.send_many``: one for each address that was used lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from meshq.address import parse_place
from meshq.client.outgoing._outbox import Outbox
from meshq.client.session._session import ClientSession
from meshq.errors import MeshqError

#: Addresses whose producer is kept.
IMPLICIT_PRODUCERS_MAX: Final = 64


class ImplicitProducers:
    """The producers of one client's plain sends, by address.

    ``check`` raises unless the client is open; ``token`` makes the id of a producer.
    """

    def __init__(self, session: ClientSession, check: Callable[[], None], token: Callable[[], bytes]) -> None:
        self._session = session
        self._check = check
        self._token = token
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
        if outbox is not None and self._session.failure is None:
            self._outboxes.move_to_end(address)
            return outbox
        self._check()
        parse_place(address)

        def failed(error: MeshqError) -> None:
            self._outboxes.pop(address, None)

        outbox = Outbox(address, self._token(), failed, window=self.windows.get(address, 0))
        self._outboxes[address] = outbox
        if len(self._outboxes) > IMPLICIT_PRODUCERS_MAX:
            _, oldest = self._outboxes.popitem(last=False)
            self._session.send_queue.close(oldest)
        self._session.send_queue.add(outbox)
        return outbox
