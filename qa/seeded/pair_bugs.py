"""Seeded bugs where two features meet: filters and dead letters, prepared transactions and deleted queues, bridges and
the memory of their targets, delays and the clocks of other nodes."""

from __future__ import annotations

from typing import Final

from qa.seeded.bug import Bug

PAIR_BUGS: Final = (
    Bug(
        name="delete a queue that a prepared transaction sends to",
        function="meshq.broker:TwoPhaseCommit.check_free",
        old="    if (sender := self._sends.for_queue(queue)) is not None:\n",
        new="    if (sender := self.holder(queue)) is not None:\n",
        checkers=("Q14",),
    ),
    Bug(
        name="forget over a restart where a prepared transaction sends to",
        function="meshq.broker:TwoPhaseCommit.take_up",
        old="    self._sends.add(prepared)\n    self._transactions.take_up(prepared.transaction)\n",
        new="    self._transactions.take_up(prepared.transaction)\n",
        checkers=("Q14",),
    ),
)
MESH_PAIR_BUGS: Final = (
    Bug(
        name="have more under way over a bridge than its target remembers",
        function="meshq.bridge:Forwarder._has_room",
        old="flights.under_way(address) + count > most",
        new="count > most",
        checkers=("B3",),
        mesh=True,
    ),
    Bug(
        name="count a delay on another node by the clocks of both",
        function="meshq.broker:asked_of_forwarded",
        old="taken = timers.elapsed_ms - about.waited",
        new="taken = timers.elapsed_ms - (timers.now_ms - about.arrival)",
        checkers=("L3",),
        mesh=True,
    ),
)
