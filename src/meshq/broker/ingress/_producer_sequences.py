"""The highest message number stored from each producer: a resent message is recognized by it.

That number is the producer's high watermark.  Below the watermark there may be gaps: runs that were refused while later
runs were stored.  Their producer may never have been told, and sends these runs again after a restart; then the gaps
say that the runs are not stored.

A producer's id stands in every message of the producer, so each reader of a message can send under that id.  Therefore
each user has watermarks of its own: messages of one user under an id say nothing of the messages that another user has
stored.  A watermark from a time without authentication, or from a version that did not tell users apart, holds for
every user who comes with the id.
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
    """The high watermarks of one user by producer id, the least recently active first."""

    __slots__ = ("_everybody", "_gaps", "_highest", "_idle", "_open", "forgotten", "gap_count")

    def __init__(self, everybody: UserSequences | None = None) -> None:
        # The watermarks of every user, which hold for this user, too.
        self._everybody = everybody
        # 0: no message of the producer is stored yet, and the producer has a channel.
        self._highest: OrderedDict[bytes, int] = OrderedDict()
        # First and last numbers of the gaps below a watermark, rising.
        self._gaps: dict[bytes, list[Gap]] = {}
        # How many channels each producer has; none of these is forgotten.
        self._open: dict[bytes, int] = {}
        # Producers without a channel, the least recently active first: the next one to forget is found at once.
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        self.gap_count: int = 0
        #: Whether a watermark was forgotten.
        self.forgotten: bool = False

    def __len__(self) -> int:
        return len(self._highest)

    def __contains__(self, producer: bytes) -> bool:
        return producer in self._highest

    @property
    def forgets(self) -> bool:
        """Whether a watermark was forgotten that the user may have had."""
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
        """Remember a new producer, with the number and the gaps that are known."""
        self._highest[producer] = highest
        self._idle[producer] = None
        for first, last in gaps:
            self.open_gap(producer, first, last)

    def open(self, producer: bytes) -> None:
        """Give a producer one more channel."""
        self._open[producer] = self._open.get(producer, 0) + 1
        self._idle.pop(producer, None)

    def close(self, producer: bytes) -> bool:
        """Take a channel from a producer; return whether the producer is gone, too, for nothing of it was stored."""
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
        """Note that ``first`` to ``last`` are placed, if these are the next messages of a known producer.

        Return whether that is so."""
        sequences = self._highest
        if sequences.get(producer) != first - 1:
            return False
        sequences[producer] = last
        sequences.move_to_end(producer)
        if producer in self._idle:
            self._idle.move_to_end(producer)
        return True

    def raise_to(self, producer: bytes, first: int, last: int) -> None:
        """Note that the messages ``first`` to ``last`` of a known producer are placed."""
        sequences = self._highest
        highest = sequences[producer]
        if last > highest:
            # A producer that may have been forgotten may have messages below that are stored.
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
        """Note that the messages ``first`` to ``last`` are not stored."""
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
        """Forget the least recently active producer without a channel; None: all producers have a channel."""
        if not self._idle:
            return None
        producer, _ = self._idle.popitem(last=False)
        del self._highest[producer]
        self.gap_count -= len(self._gaps.pop(producer, ()))
        self.forgotten = True
        return producer

    def forget_gaps(self) -> None:
        """Forget the gaps of the producer that has the oldest gap."""
        self.gap_count -= len(self._gaps.pop(next(iter(self._gaps))))

    def stored(self) -> list[tuple[bytes, int]]:
        """Return every producer with a stored message, and its high watermark."""
        return [(producer, highest) for producer, highest in self._highest.items() if highest]


class ProducerSequences:
    """The high watermarks of all users' producers.

    Their number is bounded, for each user and in all: a user with too many ids loses watermarks of its own.  Once a
    watermark of a user is forgotten, a resent message of an unknown producer of that user can't be judged.
    """

    __slots__ = ("_capacity", "_of_user", "_users", "_users_of")

    def __init__(self, capacity: int = limits.PRODUCERS_MAX, of_user: int = limits.PRODUCERS_OF_USER_MAX) -> None:
        self._capacity = capacity
        self._of_user = of_user
        # By user; "": clients without authentication.
        self._users: dict[str, UserSequences] = {"": UserSequences()}
        # The user of a producer's next runs in the journal, where there is a user.
        self._users_of: dict[bytes, str] = {}

    def __len__(self) -> int:
        return sum(map(len, self._users.values()))

    def forgets(self, user: str = "") -> bool:
        """Whether a watermark was forgotten that a user may have had."""
        return self._users.get(user, self._users[""]).forgets

    def get(self, producer: bytes, user: str = "") -> int | None:
        """The highest number stored; None: the producer is unknown."""
        return self._sequences_of(producer, user).highest(producer) or None

    def highest(self, producer: bytes) -> int:
        """The highest number that any user has stored under a producer's id; 0: none."""
        return max(sequences.highest(producer) for sequences in self._users.values())

    def whole(self, producer: bytes, user: str = "") -> int:
        """The number up to which every message is stored, or was refused and the producer has been told."""
        sequences = self._sequences_of(producer, user)
        gaps = sequences.gaps(producer)
        return gaps[0][0] - 1 if gaps else sequences.highest(producer)

    def lacks(self, producer: bytes, first: int, last: int, user: str = "") -> bool:
        """Whether the messages ``first`` to ``last``, all below the watermark, are known not to be stored."""
        gaps = self._sequences_of(producer, user).gaps(producer)
        return any(low <= first and last <= high for low, high in gaps)

    def _sequences_of(self, producer: bytes, user: str) -> UserSequences:
        sequences = self._users.get(user)
        # A user with a forgotten watermark may have stored more under the id than the watermark of every user says.
        return (
            sequences if sequences is not None and (producer in sequences or sequences.forgotten) else self._users[""]
        )

    def raise_to(self, producer: bytes, first: int, last: int, user: str = "") -> None:
        """Note that the messages ``first`` to ``last`` are placed."""
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
        """Forget producers or gaps if an addition to a user's has gone over a bound."""
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
        """Give a producer one more channel; return the watermarks of its user."""
        sequences = self._users.get(user)
        entered = sequences is None or producer not in sequences
        if sequences is None or entered:
            sequences = self._enter(producer, user)
        sequences.open(producer)
        if entered:
            self._bound(sequences, user)
        return sequences

    def close(self, producer: bytes, user: str) -> None:
        """Take a channel from a producer."""
        self._users[user].close(producer)

    # -- in the journal

    def user_of(self, producer: bytes) -> str:
        """The user to whom recovery would give the producer's next run in the journal."""
        return self._users_of.get(producer, "")

    def assign_user(self, producer: bytes, user: str) -> None:
        """Note that the runs of a producer belong to this user from here on in the journal."""
        if user:
            self._users_of[producer] = user
        else:
            self._users_of.pop(producer, None)

    def restore(self, producer: bytes, highest: int, user: str = "") -> None:
        """Restore a watermark of a checkpoint record."""
        if highest > (self.get(producer, user) or 0):
            self.raise_to(producer, 1, highest, user)

    def restore_gap(self, producer: bytes, first: int, last: int, user: str = "") -> None:
        """Restore a gap of a checkpoint record."""
        sequences = self._users.get(user)
        if sequences is not None and producer in sequences:
            sequences.open_gap(producer, first, last)
            self._bound(sequences, user)

    def restore_forgotten(self, user: str = "") -> None:
        """Restore from a checkpoint record that a watermark was forgotten."""
        self._users.setdefault(user, UserSequences(self._users[""])).forgotten = True

    def checkpoint(self) -> list[tuple[int, bytes]]:
        """Return all watermarks and gaps as kinds and payloads of records."""
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
