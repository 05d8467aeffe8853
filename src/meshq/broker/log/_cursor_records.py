"""The records of cursors and of holes in the journal: writing, deleting, and taking up."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import attrs

from meshq.broker.cursors._cursor_machine import CursorFacts, CursorMachine
from meshq.broker.cursors._holes_machine import LOGGED, RECORD_HOLES_MAX, Hole
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.records import DEFINITION, decode_holes, encode_definition, encode_holes
from meshq.errors import DamagedError


class CursorRecords:
    """Writes and restores the records of cursors."""

    __slots__ = ("_found", "_holes", "_release_queue")

    def __init__(self, release_queue: ReleaseQueue) -> None:
        self._release_queue = release_queue
        # At a start: the cursors, and holes with the epochs of their cursors, by queue.
        self._found: dict[int, tuple[CursorFacts, int]] = {}
        self._holes: list[tuple[int, int, list[Hole], int]] = []

    def write(self, facts: CursorFacts, position: int) -> int:
        """Write a cursor in place of the record at ``position``; return the position of the new record.

        Raises:
            AddressFullError: the cursor is new, and the disk is full.
            JournalBrokenError: nothing changed.
        """
        values = {"kind": "cursor", **attrs.asdict(facts)}
        # A full disk takes what an acknowledgement needs.
        deletes = [position] if position else []
        return self._release_queue.write(DEFINITION, [encode_definition(values)], deletes=deletes, vital=bool(position))

    def write_holes(self, cursor: CursorMachine, holes: Sequence[Hole]) -> int:
        """Write holes down, and note them; return the position of the last record.

        Raises:
            JournalBrokenError: nothing changed.
        """
        position = self._write_holes(cursor, holes)
        if cursor.holes.scattered:
            found = cursor.holes.all()
            old = cursor.holes.forget_all()
            # The old ones go with the next record that is written: what is said twice is said once.
            position = self._write_holes(cursor, found)
            self.forget(old)
        return position

    def _write_holes(self, cursor: CursorMachine, holes: Sequence[Hole]) -> int:
        position, facts = 0, cursor.facts
        for start in range(0, len(holes), RECORD_HOLES_MAX):
            part = holes[start : start + RECORD_HOLES_MAX]
            ranges = encode_holes([(hole.lo, hole.hi, LOGGED.index(hole.kind)) for hole in part])
            values = {"kind": "holes", "queue": facts.queue, "epoch": facts.epoch, "ranges": ranges}
            position = self._release_queue.write(DEFINITION, [encode_definition(values)], vital=True)
            cursor.holes.note(part, position)
        return position

    def forget(self, positions: Sequence[int]) -> None:
        """Delete records with the next record that is written."""
        self._release_queue.doom([position for position in positions if position])

    # -- at a start

    def restore(self, values: dict[str, Any], position: int) -> None:
        """Take up a record from the journal.

        Raises:
            DamagedError: it can't be read.
        """
        if values["kind"] == "cursor":
            facts = {name: value for name, value in values.items() if name != "kind"}
            self._found[values["queue"]] = (CursorFacts(**facts), position)
            return
        try:
            holes = [Hole(lo, hi, LOGGED[kind]) for lo, hi, kind in decode_holes(values["ranges"])]
        except (struct.error, IndexError) as error:
            raise DamagedError("journal", position, "the holes of a queue", f"{len(values['ranges'])} bytes") from error
        self._holes.append((values["queue"], values["epoch"], holes, position))

    def attach(self, queues: dict[int, Queue], now_ms: float) -> list[Queue]:
        """Give the queues their cursors, before any message is in them; return these queues."""
        attached: list[Queue] = []
        for number, (facts, position) in self._found.items():
            queue = queues.get(number)
            if queue is None:
                self.forget([position])
                continue
            queue.roster.cursor = CursorMachine(facts, now_ms, floor=0, position=position)
            attached.append(queue)
        return attached

    def restored(self, queues: dict[int, Queue]) -> None:
        """Take up the holes of the cursors, once all numbers of all queues are known."""
        gone: list[int] = []
        for one in queues.values():
            if one.roster.cursor is not None:
                one.roster.cursor.floor = one.last + 1
        for number, epoch, holes, position in self._holes:
            queue = queues.get(number)
            cursor = queue.roster.cursor if queue is not None else None
            if cursor is None or cursor.facts.epoch != epoch:
                gone.append(position)
            else:
                cursor.holes.note(holes, position)
        self.forget(gone)
        self._found, self._holes = {}, []
