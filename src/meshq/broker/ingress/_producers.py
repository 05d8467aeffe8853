"""The highest message number stored from each producer: what makes a resent message harmless.

Below it there may be gaps: runs that were refused while later ones were stored.  Who sent them may never have been
told, and sends them again after a restart; then they are not taken for stored.

A producer's id stands in every message that it sends, so whoever reads one can send under it.  Therefore each user has
marks of its own: what one user does under an id says nothing of what another user has stored.  What was stored while
nobody was asked who they are, or by a version that did not tell users apart, holds for everybody who comes with the id.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from meshq import limits
from meshq.broker.records import (
    PRODUCERS,
    PRODUCERS_MAX,
    USER_PRODUCERS,
    ProducersRecord,
    UserProducersRecord,
    encode_producers,
    encode_user_producers,
)
from meshq.wire import decline

#: Gaps remembered, of one producer and of all.  The oldest go first, of the user who has most: a gap matters only until
#: its producer has heard of the refusal, which is a round trip.
GAPS_OF_ONE_MAX: Final = 64
GAPS_MAX: Final = 16_384

Gap = tuple[int, int]


class UserSequences:
    """The high marks of one user by producer id, the least recently active first."""

    __slots__ = ("_everybody", "_gaps", "_idle", "_marks", "_open", "forgotten", "gap_count")

    def __init__(self, everybody: UserSequences | None = None) -> None:
        # What also holds for this user.
        self._everybody = everybody
        # 0: nothing of it is stored yet, and it has a channel.
        self._marks: OrderedDict[bytes, int] = OrderedDict()
        # First and last number of what was not stored below a mark, rising.
        self._gaps: dict[bytes, list[Gap]] = {}
        # How many channels each producer has; none of these is forgotten.
        self._open: dict[bytes, int] = {}
        # The others, the least recently active first: who is forgotten next must not be looked for among many.
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        self.gap_count = 0
        #: Whether some mark was given up.
        self.forgotten = False

    def __len__(self) -> int:
        return len(self._marks)

    def __contains__(self, producer: bytes) -> bool:
        return producer in self._marks

    @property
    def forgets(self) -> bool:
        """Whether some mark was given up that the user may have had."""
        return self.forgotten or (self._everybody is not None and self._everybody.forgotten)

    @property
    def idle(self) -> int:
        """Producers without a channel."""
        return len(self._idle)

    @property
    def open_count(self) -> int:
        """Producers with a channel."""
        return len(self._open)

    def has_open(self, producer: bytes) -> bool:
        """Whether the producer has a channel."""
        return producer in self._open

    def mark(self, producer: bytes) -> int:
        """The highest number stored, 0 for none."""
        return self._marks.get(producer, 0)

    def gaps(self, producer: bytes) -> list[Gap]:
        """What is known not to be stored below the mark."""
        return self._gaps.get(producer, [])

    def enter(self, producer: bytes, mark: int, gaps: list[Gap]) -> None:
        """A producer comes that was not remembered."""
        self._marks[producer] = mark
        self._idle[producer] = None
        for first, last in gaps:
            self.open_gap(producer, first, last)

    def open(self, producer: bytes) -> None:
        """A producer has one more channel."""
        self._open[producer] = self._open.get(producer, 0) + 1
        self._idle.pop(producer, None)

    def close(self, producer: bytes) -> bool:
        """A channel is gone; whether the producer with it, of which nothing was stored."""
        left = self._open.pop(producer) - 1
        if left:
            self._open[producer] = left
        elif not self._marks[producer]:
            del self._marks[producer]
            return True
        else:
            self._idle[producer] = None
        return False

    def follow(self, producer: bytes, first: int, last: int) -> bool:
        """The messages ``first`` to ``last`` are placed, if they are the next ones of a producer that is remembered;
        whether they are."""
        marks = self._marks
        if marks.get(producer) != first - 1:
            return False
        marks[producer] = last
        marks.move_to_end(producer)
        if producer in self._idle:
            self._idle.move_to_end(producer)
        return True

    def raise_to(self, producer: bytes, first: int, last: int) -> None:
        """The messages ``first`` to ``last`` of a producer that is remembered are placed."""
        marks = self._marks
        mark = marks[producer]
        if last > mark:
            # Of a producer that may have been forgotten nobody knows what is below.
            if first > mark + 1 and (mark or not self.forgets):
                self.open_gap(producer, mark + 1, first - 1)
            marks[producer] = last
        elif producer in self._gaps:
            self._fill(producer, first, last)
        self._active(producer)

    def _active(self, producer: bytes) -> None:
        self._marks.move_to_end(producer)
        if producer in self._idle:
            self._idle.move_to_end(producer)

    def open_gap(self, producer: bytes, first: int, last: int) -> None:
        """The messages ``first`` to ``last`` are not stored."""
        gaps = self._gaps.setdefault(producer, [])
        gaps.append((first, last))
        self.gap_count += 1
        if len(gaps) > GAPS_OF_ONE_MAX:
            del gaps[0]
            self.gap_count -= 1

    def _fill(self, producer: bytes, first: int, last: int) -> None:
        old = self._gaps.pop(producer)
        gaps: list[Gap] = []
        for low, high in old:
            if low <= first and last <= high:
                gaps += [(begin, end) for begin, end in ((low, first - 1), (last + 1, high)) if begin <= end]
            else:
                gaps.append((low, high))
        self.gap_count += len(gaps) - len(old)
        if gaps:
            self._gaps[producer] = gaps

    def forget_one(self) -> bytes | None:
        """Give up the least recently active producer that has no channel; None: all of them have one."""
        if not self._idle:
            return None
        producer, _ = self._idle.popitem(last=False)
        del self._marks[producer]
        self.gap_count -= len(self._gaps.pop(producer, ()))
        self.forgotten = True
        return producer

    def forget_gaps(self) -> None:
        """Give up the gaps of the producer whose oldest ones are the oldest."""
        self.gap_count -= len(self._gaps.pop(next(iter(self._gaps))))

    def stored(self) -> list[tuple[bytes, int]]:
        """Every producer of which something was stored, and its mark."""
        return [(producer, mark) for producer, mark in self._marks.items() if mark]


class ProducerSequences:
    """The high marks of all users' producers.

    Bounded, all together and for each user: who comes with many ids has its own forgotten.  Once a mark has been given
    up, a resent message of a producer of that user that isn't remembered can't be judged.
    """

    __slots__ = ("_capacity", "_of_user", "_speakers", "_users")

    def __init__(self, capacity: int = limits.PRODUCERS_MAX, of_user: int = limits.PRODUCERS_OF_USER_MAX) -> None:
        self._capacity = capacity
        self._of_user = of_user
        # The user without a name is who was not asked.
        self._users: dict[str, UserSequences] = {"": UserSequences()}
        # Whose the runs of a producer are that stand next in the journal, if not those of who was not asked.
        self._speakers: dict[bytes, str] = {}

    def __len__(self) -> int:
        return sum(map(len, self._users.values()))

    def forgets(self, user: str = "") -> bool:
        """Whether some mark was given up that a user may have had."""
        return self._users.get(user, self._users[""]).forgets

    def get(self, producer: bytes, user: str = "") -> int | None:
        """The highest number stored; None for a producer that isn't remembered."""
        return self._marks_of(producer, user).mark(producer) or None

    def highest(self, producer: bytes) -> int:
        """The highest number that any user has stored under a producer's id; 0: none."""
        return max(marks.mark(producer) for marks in self._users.values())

    def whole(self, producer: bytes, user: str = "") -> int:
        """Everything up to this number is stored, or was refused and its producer knows."""
        marks = self._marks_of(producer, user)
        gaps = marks.gaps(producer)
        return gaps[0][0] - 1 if gaps else marks.mark(producer)

    def lacks(self, producer: bytes, first: int, last: int, user: str = "") -> bool:
        """Whether the messages ``first`` to ``last``, all below the mark, are known not to be stored."""
        gaps = self._marks_of(producer, user).gaps(producer)
        return any(low <= first and last <= high for low, high in gaps)

    def _marks_of(self, producer: bytes, user: str) -> UserSequences:
        marks = self._users.get(user)
        # Who has had a mark forgotten may have stored more under the id than what holds for everybody.
        return marks if marks is not None and (producer in marks or marks.forgotten) else self._users[""]

    def raise_to(self, producer: bytes, first: int, last: int, user: str = "") -> None:
        """The messages ``first`` to ``last`` are placed."""
        marks = self._users.get(user)
        if marks is not None and marks.follow(producer, first, last):
            # Nearly always: one step, for each run.
            return
        entered = marks is None or producer not in marks
        if marks is None or entered:
            marks = self._enter(producer, user)
        gaps = marks.gap_count
        marks.raise_to(producer, first, last)
        if entered or marks.gap_count > gaps:
            self._bound(marks, user)

    def _enter(self, producer: bytes, user: str) -> UserSequences:
        """Begin to remember a producer of a user: with what was stored before users were told apart, if it is new."""
        everybody = self._users[""]
        marks = self._users.setdefault(user, UserSequences(everybody))
        known = self._marks_of(producer, user)
        marks.enter(producer, known.mark(producer), known.gaps(producer))
        return marks

    def _bound(self, marks: UserSequences, user: str) -> None:
        """Something of a user was added: see that it isn't too much."""
        if user and len(marks) > self._of_user:
            marks.forget_one()
        users = self._users.values()
        if len(self) > self._capacity:
            max(users, key=_idle).forget_one()
        if sum(map(_gap_count, users)) > GAPS_MAX:
            max(users, key=_gap_count).forget_gaps()

    # -- channels

    def check_open(self, producer: bytes, user: str) -> None:
        """See that one more producer of a user may have a channel.

        A user may always have its share of what is remembered.
        Raises:
            UsageError: the user has as many as it may.
        """
        marks = self._users.get(user)
        if marks is None or marks.has_open(producer):
            return
        open_counts = [one.open_count for one in self._users.values()]
        share = self._capacity // max(sum(map(bool, open_counts)), 1)
        most = self._of_user if user else self._capacity
        if marks.open_count >= most or (sum(open_counts) >= self._capacity and marks.open_count >= share):
            raise decline("too_many", f"a user has at most {min(most, share)} producers at a time")

    def open(self, producer: bytes, user: str) -> UserSequences:
        """A producer has one more channel; returns the marks of its user, which have it as long as it has one."""
        marks = self._users.get(user)
        entered = marks is None or producer not in marks
        if marks is None or entered:
            marks = self._enter(producer, user)
        marks.open(producer)
        if entered:
            self._bound(marks, user)
        return marks

    def close(self, producer: bytes, user: str) -> None:
        """A channel is gone."""
        self._users[user].close(producer)

    # -- in the journal

    def speaker(self, producer: bytes) -> str:
        """Whose the next run of a producer in the journal would be taken for."""
        return self._speakers.get(producer, "")

    def speaks(self, producer: bytes, user: str) -> None:
        """From here on the journal takes the runs of a producer for this user's."""
        if user:
            self._speakers[producer] = user
        else:
            self._speakers.pop(producer, None)

    def restore(self, producer: bytes, mark: int, user: str = "") -> None:
        """A checkpoint knows of this mark."""
        if mark > (self.get(producer, user) or 0):
            self.raise_to(producer, 1, mark, user)

    def restore_gap(self, producer: bytes, first: int, last: int, user: str = "") -> None:
        """A checkpoint knows of this gap."""
        marks = self._users.get(user)
        if marks is not None and producer in marks:
            marks.open_gap(producer, first, last)
            self._bound(marks, user)

    def restore_forgotten(self, user: str = "") -> None:
        """A checkpoint says that some mark was given up."""
        self._users.setdefault(user, UserSequences(self._users[""])).forgotten = True

    def checkpoint(self) -> list[tuple[int, bytes]]:
        """All of it as kinds and payloads of records."""
        speakers = self._speakers.items()
        self._speakers = {
            producer: user for producer, user in speakers if user in self._users and self._users[user].mark(producer)
        }
        return [record for user, marks in self._users.items() for record in self._records(user, marks)]

    def _records(self, user: str, marks: UserSequences) -> list[tuple[int, bytes]]:
        stored = marks.stored()
        chunks = [stored[at : at + PRODUCERS_MAX] for at in range(0, len(stored), PRODUCERS_MAX)]
        if not chunks and marks.forgotten:
            chunks = [[]]
        found = []
        for chunk in chunks:
            gaps = tuple((producer, *gap) for producer, _ in chunk for gap in marks.gaps(producer))
            if user:
                rows = tuple((producer, mark, self._speakers.get(producer) == user) for producer, mark in chunk)
                record = UserProducersRecord(user, True, marks.forgotten, rows, gaps)
                found.append((USER_PRODUCERS, encode_user_producers(record)))
            else:
                found.append((PRODUCERS, encode_producers(ProducersRecord(marks.forgotten, tuple(chunk), gaps))))
        return found


def _idle(marks: UserSequences) -> int:
    return marks.idle


def _gap_count(marks: UserSequences) -> int:
    return marks.gap_count
