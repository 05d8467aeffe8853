"""Messages of the broker's own: what it tells, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshq.address import Target
from meshq.broker.queue._run import StoredRun
from meshq.wire import Envelope, encode_run

if TYPE_CHECKING:
    from meshq.broker._core import Core


class Voice:
    """Sends as this life of the node; nothing of it is durable, and nobody waits for it."""

    __slots__ = ("_core", "_last")

    def __init__(self, core: Core) -> None:
        self._core = core
        # The number of the last message.
        self._last = 0

    def send(self, target: Target, bodies: Sequence[bytes], envelopes: Sequence[Envelope], stamp_ms: int) -> None:
        """Place messages.

        Raises:
            NotFoundError, UsageError: there is no such place, and none can be made.
            AddressFullError, JournalBrokenError, ClosedError: there is no room, or the node is ending.
        """
        core = self._core
        kinds = 0
        for envelope in envelopes:
            kinds |= envelope.kind
        run = StoredRun(
            target.address,
            encode_run(bodies, envelopes),
            durable=False,
            producer=core.settings.instance,
            number=self._last + 1,
            stamp=stamp_ms,
        )
        self._last += len(bodies)
        core.placer.place(run, target, kinds, _nothing)


def _nothing() -> None:
    """Nobody waits for it."""
