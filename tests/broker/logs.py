"""A journal in a list, by the real one's rules, whose syncs happen when the test says so."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs

from meshq.abc import Buffer
from meshq.errors import AddressFullError, JournalBrokenError
from meshq.store import JournalRecord


@attrs.define(eq=False)
class FakeLog:
    """Positions rise by one; ``sync`` makes what is placed durable and tells ``on_durable``.

    A life begins behind what an earlier one left in ``records``.
    """

    records: list[JournalRecord] = attrs.field(factory=list)
    durable: int = 0
    journal_id: bytes = b"journal of a test"[:16]
    full: bool = False
    failed: bool = False
    #: What is larger is asked for; and what there is room for, as soon as it is asked.
    large_bytes: float = math.inf
    #: While it has anything, all of it is.
    queued: list[int] = attrs.field(factory=list)
    room_bytes: float = math.inf
    #: Who has asked and waits for an answer: ``answer``.
    asked: list[tuple[int, Callable[[], None]]] = attrs.field(factory=list)
    _answering: bool = False
    on_durable: Callable[[int], None] | None = None
    hurries: int = 0
    #: First and last position of what was placed together.
    groups: list[tuple[int, int]] = attrs.field(factory=list)
    #: Position before the last checkpoint, and the positions of its records.
    checkpoints: list[tuple[int, list[int]]] = attrs.field(factory=list)
    #: The living records, by position.
    _at: dict[int, JournalRecord] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._at = {record.position: record for record in self.living()}

    @property
    def last(self) -> int:
        return self.records[-1].position if self.records else 0

    def append_nowait(
        self,
        kind: int,
        parts: Sequence[Buffer],
        *,
        tombstone: bool = False,
        deletes: Sequence[int] = (),
        refs: Sequence[int] = (),
        lazy: bool = False,
        vital: bool = False,
    ) -> int:
        if self.failed:
            raise JournalBrokenError("the disk failed", outcome="not_done")
        if self.full and not (tombstone or vital):
            raise AddressFullError("the disk has no room")
        assert all(0 < target <= self.last for target in (*deletes, *refs)), "a record speaks of earlier ones"
        assert deletes or refs or not tombstone, "a tombstone has targets"
        payload = b"".join(bytes(part) for part in parts)
        record = JournalRecord(self.last + 1, kind, payload, tuple(deletes), tuple(refs), tombstone)
        self.records.append(record)
        for target in deletes:
            self._at.pop(target, None)
        if not tombstone:
            self._at[record.position] = record
        return self.last

    def request_space(self, size_bytes: int, then: Callable[[], None]) -> bool:
        if self.full or self.failed:
            return True
        self.asked.append((size_bytes, then))
        return False

    def has_space(self, size_bytes: int) -> bool:
        return self._answering and size_bytes <= self.room_bytes

    def answer(self) -> None:
        """Room was made for whoever asked first, or there is none."""
        self._answering = True
        self.asked.pop(0)[1]()
        self._answering = False

    @contextmanager
    def atomic_batch(self, size_bytes: int) -> Iterator[None]:
        if self.failed:
            raise JournalBrokenError("the disk failed", outcome="not_done")
        if self.full:
            raise AddressFullError("the disk has no room")
        first, full, self.full = self.last + 1, self.full, False
        yield
        self.full = full
        self.groups.append((first, self.last))
        took = sum(
            len(record.payload) + 8 * len(record.deletes + record.refs) + 16 for record in self.records[first - 1 :]
        )
        assert took <= size_bytes, "a group is announced as large as it becomes"

    def request_commit(self) -> None:
        self.hurries += 1

    def sync(self, position: int | None = None) -> None:
        """Everything placed, or up to a position, is on disk."""
        self.durable = self.last if position is None else position
        if self.on_durable is not None:
            self.on_durable(self.durable)

    def checkpoint(self, drafts: Sequence[tuple[int, bytes]]) -> None:
        """The owner's soft state goes behind all that is placed, and kills the one before it."""
        old = self.checkpoints[-1][1] if self.checkpoints else []
        covered, positions = self.last, []
        for number, (kind, payload) in enumerate(drafts):
            positions.append(self.append_nowait(kind, [payload], deletes=old if not number else ()))
        self.checkpoints.append((covered, positions))

    def read(self, positions: Sequence[int]) -> dict[int, JournalRecord]:
        """The living ones of these records, which are durable."""
        assert all(0 < position <= self.durable for position in positions), "what is read back is durable"
        return {position: self._at[position] for position in positions if position in self._at}

    # -- what a crash leaves

    def cuts(self) -> list[int]:
        """Last positions with which the log may be found after a crash; a checkpoint is there whole or not at all."""
        inside = {position for _, positions in self.checkpoints for position in positions[:-1]}
        inside |= {position for first, last in self.groups for position in range(first, last)}
        return [position for position in range(self.durable, self.last + 1) if position not in inside]

    def recovered(self, last: int | None = None, rng: random.Random | None = None) -> list[JournalRecord]:
        """What a start finds: what must be there, and by chance, or without ``rng``, what may be."""
        last = self.last if last is None else last
        placed = [record for record in self.records if record.position <= last]
        dead = {target for record in placed for target in record.deletes}
        covered = max([at for at, positions in self.checkpoints if not positions or positions[-1] <= last], default=0)
        found = []
        for record in placed:
            alive = not record.tombstone and record.position not in dead
            needed = not alive and any(target not in dead for target in record.refs)
            late = not record.tombstone and record.position > covered
            maybe = record.tombstone and (rng is None or rng.random() < 0.5)
            if alive or needed or late or maybe:
                found.append(attrs.evolve(record, deleted=not record.tombstone and not alive))
        return found

    def after_crash(self, last: int | None = None) -> FakeLog:
        """The log of the next life: what was placed behind ``last`` is gone, and its positions are given again."""
        last = self.last if last is None else last
        kept = [record for record in self.records if record.position <= last]
        checkpoints = [found for found in self.checkpoints if not found[1] or found[1][-1] <= last]
        return FakeLog(records=kept, durable=last, checkpoints=checkpoints)

    def living(self) -> list[JournalRecord]:
        """Roots that nobody has killed."""
        dead = {target for record in self.records for target in record.deletes}
        return [record for record in self.records if not record.tombstone and record.position not in dead]

    def kinds(self) -> list[int]:
        """The kinds of all records, in order."""
        return [record.kind for record in self.records]
