"""The patience with a node that has begun another store, and has not heard of the nodes behind it yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from meshq.abc import RemoteBindings, RemoteQueue, StoreAndForwardQueue

#: Seconds in which such a node hears of the nodes behind it, if these are there.
READY_S: Final = 30.0


class Readiness:
    """The readiness of a peer for the messages that wait for queues of further nodes."""

    def __init__(self) -> None:
        # The store that lacks some of these queues, and since when.
        self._lacking = b"", 0.0

    def lacks(
        self, routes: RemoteBindings, link: StoreAndForwardQueue, queues: Sequence[RemoteQueue], store: bytes
    ) -> bool:
        """Whether a peer with these ``queues`` lacks others for which messages wait, and may hear of them soon."""
        if not routes.lacks(link, queues, store):
            return False
        now = trio.current_time()
        if self._lacking[0] != store:
            self._lacking = store, now
        return now < self._lacking[1] + READY_S
