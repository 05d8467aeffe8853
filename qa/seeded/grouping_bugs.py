"""Seeded bugs of message groups that hold for a whole cluster, for the simulation of a mesh and the model of groups."""

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
        old="    if not self._may_give(name) or wanted not in self.members:",
        new="    if wanted not in self.members:",
        checkers=("CG2",),
        required=True,
        mesh=True,
        stage="grouping",
    ),
    Bug(
        name="answer who has a group before that is written",
        function="meshq.cluster:Grouping._keep",
        old="        self._groups.keep(*name, holder)\n",
        new="",
        checkers=("CG7",),
        required=True,
        mesh=True,
        stage="grouping",
    ),
    Bug(
        name="keep a group that another node has, too",
        function="meshq.cluster:Grouping._yield",
        old="self._groups.told(said.queue, said.group, answer)",
        new="pass",
        checkers=("CG2", "progress", "quiet"),
        required=True,
        mesh=True,
        stage="grouping",
    ),
    Bug(
        name="tell nobody that a group is free",
        function="meshq.cluster:Grouping._round",
        old="[Said(FREE, *name) for name in self._freed]",
        new="[Said(FREE, *name) for name in ()]",
        checkers=("leak",),
        required=True,
        mesh=True,
        stage="grouping",
    ),
    Bug(
        name="move messages of a group that came after the arbiter was asked",
        function="meshq.broker:PinsMachine.ask",
        old="self._asked[name] = last",
        new="self._asked[name] = last + 9",
        checkers=("CG6",),
        required=True,
        mesh=True,
        stage="grouping",
    ),
    Bug(
        name="consume a group that this node only asks for",
        function="meshq.broker:PinsMachine.claim",
        old="    if name in self.elsewhere:\n",
        new="    if name in self._asked:\n        return True\n    if name in self.elsewhere:\n",
        checkers=("CG1",),
        required=True,
        mesh=True,
        stage="grouping",
    ),
)
