"""Stages and sinks in the journal, and the queues that have the messages of stages."""

from __future__ import annotations

import struct
from typing import Any

import attrs

from meshq.address import STAGE, STAGES
from meshq.broker.catalog._definition_records import DefinitionRecords
from meshq.broker.catalog._router import Address, Router
from meshq.broker.log._high_watermarks import HighWatermarks
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.stages._ledger_machine import LedgerMachine, SinkFacts, StageFacts, StageMachine
from meshq.errors import DamagedError


class StageDefinitions:
    """Writes stages and the entries of sinks down, and restores both."""

    def __init__(self, router: Router, records: DefinitionRecords, watermarks: HighWatermarks) -> None:
        self._router = router
        self._records = records
        self._watermarks = watermarks
        #: The stages that wait for a decision or are on their way, and the last batch of each sink.
        self.ledger: LedgerMachine = LedgerMachine()

    def queue(self, stage: StageMachine) -> Queue:
        """Return the queue with the messages of a stage."""
        return self._router.by_number[stage.facts.number]

    def create(self, wanted: StageFacts, now_ms: float) -> StageMachine:
        """Create a stage and its queue, with the next number.

        Raises:
            AddressFullError, JournalBrokenError: nothing changed.
        """
        number = self._router.last_number + 1
        stage = StageMachine(attrs.evolve(wanted, number=number), now_ms)
        # The journal may refuse: it is asked before anything has changed.
        position = self._records.write({"kind": "stage", **attrs.asdict(stage.facts)})
        self._add(stage, self._records.numbers.given(number, position))
        self._watermarks.open(self.queue(stage))
        return stage

    def _add(self, stage: StageMachine, position: int) -> None:
        number = stage.facts.number
        self._router.add_queue(Queue(number, f"{STAGE}{number}", STAGES, durable=True), self._address())
        self._router.positions[number] = position
        self.ledger.stages[number] = stage

    def _address(self) -> Address:
        # Nothing is written of it: it is there when it is needed.
        return self._router.addresses.get(STAGES) or self._router.add_address(STAGES, "multicast")

    def rewrite(self, facts: StageFacts) -> None:
        """Write a stage down that is about to change, in place of its record.

        Raises:
            JournalBrokenError: nothing changed.
        """
        position = self._router.positions[facts.number]
        values = {"kind": "stage", **attrs.asdict(facts)}
        self._router.positions[facts.number] = self._records.write(values, [position] if position else None)

    def write_sink(self, facts: SinkFacts) -> int:
        """Write the entry of a sink down, in place of the one before; return the position of the record.

        Raises:
            AddressFullError: the sink is new, and the disk is full; nothing changed.
            JournalBrokenError: nothing changed.
        """
        _, position = self.ledger.sinks.get(facts.sink, (None, 0))
        placing = struct.pack(f"<{len(facts.placing)}I", *facts.placing)
        values = {"kind": "sink", **attrs.asdict(facts), "placing": placing}
        return self._records.write(values, [position] if position else None)

    def forget_sink(self, sink: str) -> None:
        """Delete the entry of a sink.

        Raises:
            JournalBrokenError: nothing changed.
        """
        _, position = self.ledger.sinks[sink]
        self._records.forget([position])
        del self.ledger.sinks[sink]

    def restore(self, values: dict[str, Any], position: int) -> None:
        """Take up a record from the journal.

        Raises:
            DamagedError: it can't be read.
        """
        facts = {name: value for name, value in values.items() if name != "kind"}
        if values["kind"] == "stage":
            self._add(StageMachine(StageFacts(**facts), 0), position)
            return
        placing = facts["placing"]
        if len(placing) % 4:
            raise DamagedError("journal", position, "the numbers of stages", f"{len(placing)} bytes")
        facts["placing"] = struct.unpack(f"<{len(placing) // 4}I", placing)
        self.ledger.sinks[facts["sink"]] = SinkFacts(**facts), position
