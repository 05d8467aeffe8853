"""The partner of the simulated broker: takes the records of the broker's journal, lags behind, and fails at times.

The partner survives the broker's lives: each life, and each turn within a life, gives its records to a sink of its
own, and the policy brings the partner up to the store before the next one begins.  The history learns when the partner
had each message, so that a checker can say what was confirmed or delivered too early.
"""

from __future__ import annotations

import math
import random
import re
from collections import deque
from typing import Final

import attrs
import trio

from meshq.abc import ReplicatedBatch, ReplicationSink, ReplicationStart
from meshq.errors import BrokenError
from meshq.ids import Position
from meshq.testing import Swarm
from meshq.testing.history._history import History

#: Seconds by which the partner lags behind: mostly, and now and then.
LAG_S: Final = (0.0005, 0.05)
LONG_LAG_S: Final = (0.5, 3.0)
#: The share of batches before which the partner stops for a while, and the share at which the partner fails.
LONG_SHARE: Final = 0.01
FAILURE_SHARE: Final = 0.001
#: The beginning of a body: ``meshq.testing.history._history.body_of``.
BODY_HEAD: Final = re.compile(rb"([0-9a-f]{16}) [0-9a-f]{8} ")


@attrs.frozen
class Lot:
    """A batch that the partner was given: its last position, its messages, and when the partner has the batch."""

    last: int
    uids: tuple[int, ...]
    due_s: float
    fails: bool


class Partner:
    """The place besides the broker's disk where records have to be durable."""

    def __init__(self, history: History, swarm: Swarm) -> None:
        self._history = history
        self._swarm = swarm
        self._rng: random.Random = swarm.rng("partner")
        self._peaceful = True
        # The batches that were given and that the partner does not have, in order.
        self.under_way: deque[Lot] = deque()
        for kind in ("fault.partner_lags", "fault.partner_fails", "seen.partner_was_behind"):
            swarm.count(kind, 0)
        history.partner_s = {}

    def make_trouble(self) -> None:
        """Stop for a while now and then, and fail at times, from now on."""
        self._peaceful = False

    def make_peace(self) -> None:
        """Lag behind a little from now on, and fail no more."""
        self._peaceful = True

    def sink(self) -> PartnerSink:
        """Make the sink of one turn."""
        return PartnerSink(self)

    def begin(self, last: int) -> None:
        """Take the records of the store up to ``last``, and drop the records that the store lost."""
        for lot in self.under_way:
            if lot.last <= last:
                self._swarm.count("seen.partner_was_behind")
                self._has(lot)
        self.under_way.clear()

    def take(self, batch: ReplicatedBatch) -> None:
        """Take a batch, which the partner has after a while."""
        found = BODY_HEAD.findall(b"".join(bytes(part) for part in batch.parts))
        uids = tuple(int(name, 16) for name in found)
        for uid in uids:
            self._history.given_to_partner(uid)
        fails = self._rng.random() < FAILURE_SHARE
        lags = self._rng.random() < LONG_SHARE
        lag_s = self._rng.uniform(*(LONG_LAG_S if lags and not self._peaceful else LAG_S))
        if lags and not self._peaceful:
            self._swarm.count("fault.partner_lags")
        before_s = self.under_way[-1].due_s if self.under_way else 0.0
        due_s = max(before_s, trio.current_time() + lag_s)
        self.under_way.append(Lot(batch.last, uids, due_s, fails and not self._peaceful))

    def arrive(self) -> int:
        """Take the next batch that is under way for good; return its last position."""
        lot = self.under_way.popleft()
        # A lot that came before the peace may arrive after it.
        if lot.fails and not self._peaceful:
            self._swarm.count("fault.partner_fails")
            self._history.note("the partner fails")
            self.under_way.appendleft(attrs.evolve(lot, due_s=math.inf))
            raise BrokenError("the partner is gone") from ConnectionResetError("the link to the partner was closed")
        self._has(lot)
        return lot.last

    def _has(self, lot: Lot) -> None:
        for uid in lot.uids:
            self._history.partner_has(uid)


class PartnerSink(ReplicationSink):
    """The sink of one turn of the broker."""

    def __init__(self, partner: Partner) -> None:
        self._partner = partner
        self._durable = Position(0)
        self._given = trio.Event()

    def begin(self, start: ReplicationStart) -> None:
        """Bring the partner up to the store."""
        self._partner.begin(start.last)
        self._durable = start.last

    def place(self, batch: ReplicatedBatch) -> None:
        """Give a batch to the partner."""
        self._partner.take(batch)
        given, self._given = self._given, trio.Event()
        given.set()

    async def durable_beyond(self, position: Position) -> Position:
        """Wait until the partner has more."""
        await trio.lowlevel.checkpoint()
        while self._durable <= position:
            while not self._partner.under_way:
                await self._given.wait()
            await trio.sleep_until(self._partner.under_way[0].due_s)
            self._durable = Position(max(self._durable, self._partner.arrive()))
        return self._durable

    def end(self) -> None:
        """Take note that no batch follows: the lag of the partner is bounded."""
