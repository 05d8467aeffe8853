"""The producers' numbers as a start reads them from the journal: the last checkpoint, and each run after it."""

from __future__ import annotations

from meshq.broker.ingress._producer_sequences import ProducerSequences
from meshq.broker.records import ProducersRecord, RunRecord, UserProducersRecord


class RecoveredProducers:
    """The records of the journal about producers."""

    __slots__ = ("_checkpoint_position", "_checkpoints", "_owner_changes", "_runs", "_users")

    def __init__(self) -> None:
        # Position, producer, and the numbers of its first and last message, of all runs.
        self._runs: list[tuple[int, bytes, int, int]] = []
        # Position, producer and user where runs of the producer begin to be this user's.
        self._owner_changes: list[tuple[int, bytes, str]] = []
        # What the last checkpoint says, and where it stands.
        self._checkpoints: list[ProducersRecord] = []
        self._users: list[UserProducersRecord] = []
        self._checkpoint_position = 0

    def run(self, record: RunRecord, position: int) -> None:
        """Take in the record of a client's run."""
        self._runs.append((position, record.producer, record.number, record.number + record.content.rows - 1))

    def everybody(self, record: ProducersRecord, position: int) -> None:
        """Take in the part of a checkpoint without users: numbers from the time before logins were required."""
        self._checkpoints.append(record)
        self._checkpoint_position = position

    def of_user(self, record: UserProducersRecord, position: int) -> None:
        """Take in a record of a user's producers, or of a change of a producer's user."""
        if record.whole:
            self._users.append(record)
            self._checkpoint_position = position
        else:
            self._owner_changes += [(position, producer, record.user) for producer, _, _ in record.marks]

    def restore(self, producers: ProducerSequences) -> None:
        """Restore the sequences: from the last checkpoint, and from every run after it."""
        for record in self._checkpoints:
            if record.forgotten:
                producers.restore_forgotten()
            for producer, highest in record.marks:
                producers.restore(producer, highest)
            for producer, first, last in record.gaps:
                producers.restore_gap(producer, first, last)
        for said in self._users:
            if said.forgotten:
                producers.restore_forgotten(said.user)
            for producer, highest, speaks in said.marks:
                producers.restore(producer, highest, said.user)
                if speaks:
                    producers.assign_user(producer, said.user)
            for producer, first, last in said.gaps:
                producers.restore_gap(producer, first, last, said.user)
        changes = iter(sorted(change for change in self._owner_changes if change[0] > self._checkpoint_position))
        change = next(changes, None)
        for position, producer, first, last in sorted(self._runs):
            if position > self._checkpoint_position:
                while change is not None and change[0] < position:
                    producers.assign_user(change[1], change[2])
                    change = next(changes, None)
                producers.raise_to(producer, first, last, producers.user_of(producer))
        while change is not None:
            producers.assign_user(change[1], change[2])
            change = next(changes, None)
