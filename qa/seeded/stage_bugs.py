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
        name="commit the stages that were left alone with the next batch",
        function="meshq.broker:LedgerMachine.verdict",
        old="    winners = self._winners(sink, batch, numbers)\n",
        new="    winners = tuple(one for one in self.of(sink) if one.facts.prepared and one.facts.batch <= batch)\n",
        checkers=("Q3",),
        mesh=True,
    ),
    Bug(
        name="delete a stage when its first run is placed",
        function="meshq.broker:StagePlacing.place",
        old="        looks -= gone + view.run.size_bytes // limits.STEP_MESSAGE_BYTES\n",
        new="        return\n",
        checkers=("Q1", "Q14"),
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
    Bug(
        name="purge again for a batch that was committed before",
        function="meshq.broker:Stages.commit",
        old="        return BatchDecision(True, 0)\n",
        new="        self._overwriting.purge(purge) if purge else None\n        return BatchDecision(True, 0)\n",
        checkers=("Q14",),
        mesh=True,
    ),
)
