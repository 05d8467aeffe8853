"""Seeded bugs of clients that send to several brokers, for their own simulation."""

from __future__ import annotations

from functools import partial
from typing import Final

from qa.seeded.bug import Bug

_Bug: Final = partial(Bug, mesh=True, stage="fanout")

FANOUT_BUGS: Final = (
    _Bug(
        name="call a send done by the first broker that confirms",
        function="meshq.client:FanoutAnswers.verdict",
        old="if len(self._confirmed) >= self._needed:",
        new="if self._confirmed:",
        checkers=("FO1",),
    ),
    _Bug(
        name="draw a broker for each message of a queue",
        function="meshq.client:FanoutMachine.step",
        old="targets, needed = (self._chosen,), 1",
        new="targets, needed = connected, 1",
        checkers=("FO3",),
    ),
    _Bug(
        name="take a broker that refused for one that confirmed",
        function="meshq.client:FanoutAnswers.answered",
        old="if error is None:",
        new="if error is None or self._open:",
        checkers=("FO1", "FO2"),
    ),
    _Bug(
        name="forget a broker whose link was lost",
        function="meshq.client:FanoutMachine.attached",
        old='broker.life.on("double" if node_id and others else "attach")',
        new='broker.life.on("attach" if broker.life.state == "connecting" else "lose")',
        checkers=("FO5",),
    ),
)
