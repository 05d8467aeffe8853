"""The highest message number stored from each producer: a resent message is recognized by it.

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

    __slots__ = ("_everybody", "_gaps", "_highest", "_idle", "_open", "forgotten", "gap_count")

    def __init__(self, everybody: UserSequences | None = None) -> None:
        # What also holds for this user.
        self._everybody = everybody
        # 0: nothing of it is stored yet, and it has a channel.
        self._highest: OrderedDict[bytes, int] = OrderedDict()
        # First and last number of what was not stored below a mark, rising.
        self._gaps: dict[bytes, list[Gap]] = {}
        # How many channels each producer has; none of these is forgotten.
        self._open: dict[bytes, int] = {}
        # The others, the least recently active first: who is forgotten next must not be looked for among many.
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        self.gap_count: int = 0
        #: Whether some mark was given up.
        self.forgotten: bool = False

    def __len__(self) -> int:
        return len(self._highest)

    def __contains__(self, producer: bytes) -> bool:
        return producer in self._highest

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

    def highest(self, producer: bytes) -> int:
        """The highest number stored, 0 for none."""
        return self._highest.get(producer, 0)

    def gaps(self, producer: bytes) -> list[Gap]:
        """Return the known gaps below the highest stored number."""
        return self._gaps.get(producer, [])

    def enter(self, producer: bytes, highest: int, gaps: list[Gap]) -> None:
        """A producer comes that was not remembered."""
        self._highest[producer] = highest
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
        elif not self._highest[producer]:
            del self._highest[producer]
            return True
        else:
            self._idle[producer] = None
        return False

    def follow(self, producer: bytes, first: int, last: int) -> bool:
        """The messages ``first`` to ``last`` are placed, if they are the next ones of a producer that is remembered;
        whether they are."""
        sequences = self._highest
        if sequences.get(producer) != first - 1:
            return False
        sequences[producer] = last
        sequences.move_to_end(producer)
        if producer in self._idle:
            self._idle.move_to_end(producer)
        return True

    def raise_to(self, producer: bytes, first: int, last: int) -> None:
        """The messages ``first`` to ``last`` of a producer that is remembered are placed."""
        sequences = self._highest
        highest = sequences[producer]
        if last > highest:
            # Of a producer that may have been forgotten nobody knows what is below.
            if first > highest + 1 and (highest or not self.forgets):
                self.open_gap(producer, highest + 1, first - 1)
            sequences[producer] = last
        elif producer in self._gaps:
            self._fill(producer, first, last)
        self._active(producer)

    def _active(self, producer: bytes) -> None:
        self._highest.move_to_end(producer)
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
        del self._highest[producer]
        self.gap_count -= len(self._gaps.pop(producer, ()))
        self.forgotten = True
        return producer

    def forget_gaps(self) -> None:
        """Give up the gaps of the producer whose oldest ones are the oldest."""
        self.gap_count -= len(self._gaps.pop(next(iter(self._gaps))))

    def stored(self) -> list[tuple[bytes, int]]:
        """Every producer of which something was stored, and its mark."""
        return [(producer, highest) for producer, highest in self._highest.items() if highest]


class ProducerSequences:
    """The high marks of all users' producers.

    Bounded, all together and for each user: who comes with many ids has its own forgotten.  Once a mark has been given
    up, a resent message of a producer of that user that isn't remembered can't be judged.
    """

    __slots__ = ("_capacity", "_of_user", "_users", "_users_of")

    def __init__(self, capacity: int = limits.PRODUCERS_MAX, of_user: int = limits.PRODUCERS_OF_USER_MAX) -> None:
        self._capacity = capacity
        self._of_user = of_user
        # The user without a name is who was not asked.
        self._users: dict[str, UserSequences] = {"": UserSequences()}
        # Whose the runs of a producer are that stand next in the journal, if not those of who was not asked.
        self._users_of: dict[bytes, str] = {}

    def __len__(self) -> int:
        return sum(map(len, self._users.values()))

    def forgets(self, user: str = "") -> bool:
        """Whether some mark was given up that a user may have had."""
        return self._users.get(user, self._users[""]).forgets

    def get(self, producer: bytes, user: str = "") -> int | None:
        """The highest number stored; None for a producer that isn't remembered."""
        return self._sequences_of(producer, user).highest(producer) or None

    def highest(self, producer: bytes) -> int:
        """The highest number that any user has stored under a producer's id; 0: none."""
        return max(sequences.highest(producer) for sequences in self._users.values())

    def whole(self, producer: bytes, user: str = "") -> int:
        """Everything up to this number is stored, or was refused and its producer knows."""
        sequences = self._sequences_of(producer, user)
        gaps = sequences.gaps(producer)
        return gaps[0][0] - 1 if gaps else sequences.highest(producer)

    def lacks(self, producer: bytes, first: int, last: int, user: str = "") -> bool:
        """Whether the messages ``first`` to ``last``, all below the mark, are known not to be stored."""
        gaps = self._sequences_of(producer, user).gaps(producer)
        return any(low <= first and last <= high for low, high in gaps)

    def _sequences_of(self, producer: bytes, user: str) -> UserSequences:
        sequences = self._users.get(user)
        # Who has had a mark forgotten may have stored more under the id than what holds for everybody.
        return (
            sequences if sequences is not None and (producer in sequences or sequences.forgotten) else self._users[""]
        )

    def raise_to(self, producer: bytes, first: int, last: int, user: str = "") -> None:
        """The messages ``first`` to ``last`` are placed."""
        sequences = self._users.get(user)
        if sequences is not None and sequences.follow(producer, first, last):
            # Nearly always: one step, for each run.
            return
        entered = sequences is None or producer not in sequences
        if sequences is None or entered:
            sequences = self._enter(producer, user)
        gaps = sequences.gap_count
        sequences.raise_to(producer, first, last)
        if entered or sequences.gap_count > gaps:
            self._bound(sequences, user)

    def _enter(self, producer: bytes, user: str) -> UserSequences:
        """Begin to remember a producer of a user, with the number stored before users were told apart."""
        everybody = self._users[""]
        sequences = self._users.setdefault(user, UserSequences(everybody))
        known = self._sequences_of(producer, user)
        sequences.enter(producer, known.highest(producer), known.gaps(producer))
        return sequences

    def _bound(self, sequences: UserSequences, user: str) -> None:
        """Something of a user was added: see that it isn't too much."""
        if user and len(sequences) > self._of_user:
            sequences.forget_one()
        users = self._users.values()
        if len(self) > self._capacity:
            max(users, key=_idle).forget_one()
        if sum(map(_gap_count, users)) > GAPS_MAX:
            max(users, key=_gap_count).forget_gaps()

    # -- channels

    def check_open(self, producer: bytes, user: str) -> None:
        """Check that a further producer of a user may have a channel.

        A user may always have its share of the remembered producers.
        Raises:
            UsageError: the user has the maximum of open producers.
        """
        sequences = self._users.get(user)
        if sequences is None or sequences.has_open(producer):
            return
        open_counts = [one.open_count for one in self._users.values()]
        share = self._capacity // max(sum(map(bool, open_counts)), 1)
        most = self._of_user if user else self._capacity
        if sequences.open_count >= most or (sum(open_counts) >= self._capacity and sequences.open_count >= share):
            raise decline("too_many", f"a user has at most {min(most, share)} producers at a time")

    def open(self, producer: bytes, user: str) -> UserSequences:
        """A producer has one more channel; returns the marks of its user, which have it as long as it has one."""
        sequences = self._users.get(user)
        entered = sequences is None or producer not in sequences
        if sequences is None or entered:
            sequences = self._enter(producer, user)
        sequences.open(producer)
        if entered:
            self._bound(sequences, user)
        return sequences

    def close(self, producer: bytes, user: str) -> None:
        """A channel is gone."""
        self._users[user].close(producer)

    # -- in the journal

    def user_of(self, producer: bytes) -> str:
        """Whose the next run of a producer in the journal would be taken for."""
        return self._users_of.get(producer, "")

    def assign_user(self, producer: bytes, user: str) -> None:
        """From here on the journal takes the runs of a producer for this user's."""
        if user:
            self._users_of[producer] = user
        else:
            self._users_of.pop(producer, None)

    def restore(self, producer: bytes, highest: int, user: str = "") -> None:
        """A checkpoint knows of this mark."""
        if highest > (self.get(producer, user) or 0):
            self.raise_to(producer, 1, highest, user)

    def restore_gap(self, producer: bytes, first: int, last: int, user: str = "") -> None:
        """A checkpoint knows of this gap."""
        sequences = self._users.get(user)
        if sequences is not None and producer in sequences:
            sequences.open_gap(producer, first, last)
            self._bound(sequences, user)

    def restore_forgotten(self, user: str = "") -> None:
        """A checkpoint says that some mark was given up."""
        self._users.setdefault(user, UserSequences(self._users[""])).forgotten = True

    def checkpoint(self) -> list[tuple[int, bytes]]:
        """All of it as kinds and payloads of records."""
        users_of = self._users_of.items()
        self._users_of = {
            producer: user for producer, user in users_of if user in self._users and self._users[user].highest(producer)
        }
        return [record for user, sequences in self._users.items() for record in self._records(user, sequences)]

    def _records(self, user: str, sequences: UserSequences) -> list[tuple[int, bytes]]:
        stored = sequences.stored()
        chunks = [stored[at : at + PRODUCERS_MAX] for at in range(0, len(stored), PRODUCERS_MAX)]
        if not chunks and sequences.forgotten:
            chunks = [[]]
        found = []
        for chunk in chunks:
            gaps = tuple((producer, *gap) for producer, _ in chunk for gap in sequences.gaps(producer))
            if user:
                rows = tuple((producer, highest, self._users_of.get(producer) == user) for producer, highest in chunk)
                record = UserProducersRecord(user, True, sequences.forgotten, rows, gaps)
                found.append((USER_PRODUCERS, encode_user_producers(record)))
            else:
                found.append((PRODUCERS, encode_producers(ProducersRecord(sequences.forgotten, tuple(chunk), gaps))))
        return found


def _idle(sequences: UserSequences) -> int:
    return sequences.idle


def _gap_count(sequences: UserSequences) -> int:
    return sequences.gap_count
