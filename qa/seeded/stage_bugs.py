"""Seeded bugs of stages: of the batch ledger, and of the way of messages out of their stages."""

from __future__ import annotations

from typing import Final

from qa.seeded.bug import Bug

STAGE_BUGS: Final = (
    Bug(
        name="forget at a restart which batch of a sink was the last one",
        function="meshq.broker:StageDefinitions.restore",
        old='    self.ledger.sinks[facts["sink"]] = SinkFacts(**facts), position\n',
        new="",
        checkers=("Q14", "Q1", "Q5"),
        mesh=True,
    ),
    Bug(
        name="drop at a restart what is left of a committed batch",
        function="meshq.broker:LedgerMachine.restored",
        old='                stage.life.on("win")\n',
        new="                pass\n",
        checkers=("Q1", "Q14"),
        mesh=True,
    ),
    Bug(
        name="place messages of a stage and not take them out of it",
        function="meshq.broker:MessageMover._place",
        old="        logged = self._staged_places.place(moved, target, gone)\n",
        new="        logged = self._staged_places.place(moved, target, ())\n",
        checkers=("Q4", "Q5", "Q14"),
        mesh=True,
    ),
    Bug(
        name="answer that a batch is committed and not write it down",
        function="meshq.broker:Stages.commit",
        old="    position = self._records.write_sink(facts)\n",
        new="    position = 0\n",
        checkers=("Q14", "Q1", "Q5"),
        mesh=True,
    ),
)
