"""Seeded bugs of message groups that hold for a whole cluster, for the simulation of a mesh."""

from __future__ import annotations

from typing import Final

from qa.seeded.bug import Bug

GROUPING_BUGS: Final = (
    Bug(
        name="offer a group that another node has",
        function="meshq.broker:PinsMachine.may_offer",
        old="((queue, group) in self.held and not self.leaving)",
        new="not self.leaving",
        checkers=("Q14", "InvariantError"),
        mesh=True,
    ),
    Bug(
        name="give a group to a node before all have told which groups they have",
        function="meshq.cluster:ArbiterMachine._want",
        old="    if not self.ready or wanted not in self.members:",
        new="    if wanted not in self.members:",
        checkers=("Q14",),
        mesh=True,
    ),
)
