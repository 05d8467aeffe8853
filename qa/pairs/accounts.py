"""The accounts of a meeting: all messages that were sent and taken, compared at the end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

import attrs

from qa.pairs.covering import Row
from qa.pairs.features import COPIES, ENDS, SUBSCRIPTIONS

#: The account of the messages themselves, and that of the copies of a divert.
MESSAGES: Final = ENDS[0]
DIVERTED: Final = COPIES[0]
#: With these a message may come behind those of its key that were sent after it.
MIXING: Final = frozenset({"redrive", "redistribution", "kill", "power loss"})
#: With these a broker starts again, which forgets what is not durable.
FORGETTING: Final = frozenset({"bridges", "kill", "power loss"})


class MeetingError(AssertionError):
    """Features that met have broken a promise; the message names the one that says so."""


@attrs.define
class Fate:
    """The facts about one message."""

    durable: bool = True
    #: Of the messages of one key a queue may keep only the newest.
    key: str = ""
    #: When it became visible, at the earliest and at the latest.
    seen_from: float = 0.0
    seen_until: float = math.inf
    #: Whether it is certain that it was stored, and that it was not.
    confirmed: bool = False
    refused: bool = False
    #: The nodes to which it was sent: an id is known to one node, so each of them may have it.
    nodes: set[bytes] = attrs.field(factory=set)


@attrs.define
class Book:
    """The messages that were taken of one copy of each."""

    taken: Counter[bytes] = attrs.field(factory=Counter)
    #: An acknowledgement of these may have been carried out.
    in_doubt: set[bytes] = attrs.field(factory=set)


class MeetingAccounts:
    """All messages of a meeting, with the fate of each."""

    def __init__(self, row: Row) -> None:
        self._row = row
        self.fates: dict[bytes, Fate] = {}
        self.books: dict[str, Book] = {name: Book() for name in (MESSAGES, DIVERTED, *SUBSCRIPTIONS)}
        #: How often what a feature does was done.
        self.acted: Counter[str] = Counter()
        #: How many messages purges have removed, by their own account; and at most.
        self.purged: float = 0
        self.purged_most: float = 0

    def check_known(self, bodies: Iterable[bytes], where: str) -> None:
        """Check that all of these were sent.

        Raises:
            MeetingError: one was not.
        """
        for body in bodies:
            if body not in self.fates:
                raise MeetingError(f"P1: {body[:40]!r} is in {where}, and was never sent")

    def check_newest(self, bodies: Iterable[bytes]) -> None:
        """Check the messages in a queue that keeps the newest of each key.

        Raises:
            MeetingError: there are two of a key.
        """
        keys = Counter(self.fates[body].key for body in bodies if body in self.fates)
        for key, count in keys.items():
            if count > 1:
                raise MeetingError(f"P7: {count} messages of {key} wait, not the newest alone")

    def judge(self) -> None:
        """Compare sent messages with taken ones.

        Raises:
            MeetingError: a promise is broken.
        """
        for name, book in self.books.items():
            self._judge_taken(name, book)
        missing = self._missing(MESSAGES)
        if "last value" in self._row:
            left = [body for body in missing if not self._was_replaced(body)]
            self.acted["last value"] += len(missing) - len(left)
            missing = left
        if len(missing) > self.purged_most:
            raise MeetingError(f"P5: {missing[0][:40]!r} was confirmed, and is lost")
        book = self.books[MESSAGES]
        gone = sum(not book.taken[body] and not fate.refused for body, fate in self.fates.items())
        if self.purged > gone:
            raise MeetingError(f"P8: {self.purged} messages were purged, they said, and only {gone} are gone")
        for name, feature, promise in (
            (DIVERTED, "divert", "P6: the copy of {} is lost"),
            *((name, "subscriptions", f"P11: {{}} is lost for {name}") for name in SUBSCRIPTIONS),
        ):
            lost = self._missing(name)
            if feature in self._row and lost:
                raise MeetingError(promise.format(repr(lost[0][:40])))

    def _judge_taken(self, name: str, book: Book) -> None:
        for body, times in book.taken.items():
            fate = self.fates.get(body)
            if fate is None:
                raise MeetingError(f"P1: {body[:40]!r} was never sent, and came to {name}")
            if fate.refused:
                raise MeetingError(f"P3: {body[:40]!r} was rolled back, and came to {name}")
            if times > max(1, len(fate.nodes)):
                raise MeetingError(f"P4: {body[:40]!r} was taken {times} times from {name}")

    def _missing(self, name: str) -> list[bytes]:
        """Return the messages that have to be there, and are not."""
        book, lasting = self.books[name], not self._row & FORGETTING
        certain = (body for body, fate in self.fates.items() if fate.confirmed and (fate.durable or lasting))
        return [body for body in certain if not book.taken[body] and body not in book.in_doubt]

    def _was_replaced(self, body: bytes) -> bool:
        """Whether a newer message of its key may have taken its place."""
        fate, mixed = self.fates[body], bool(self._row & MIXING)
        others = {other: one for other, one in self.fates.items() if one.key == fate.key and other != body}
        book = self.books[MESSAGES]
        if mixed and all(one.durable for one in others.values()):
            # Whichever of them came last is there.
            return any(book.taken[other] or other in book.in_doubt for other in others)
        return any(not one.refused and (mixed or one.seen_until >= fate.seen_from) for one in others.values())
