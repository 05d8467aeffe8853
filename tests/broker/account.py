"""What a whole queue ought to do, in plain words: every message one small object, every rule one loop.

It knows nothing of runs, records, marks or timers.  Whatever a queue does with its messages is said here once.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs

#: States of a message in the queue; anywhere else it has a place and no state.
SCHEDULED, READY, UNACKED, DELAYED = "scheduled", "ready", "held", "delayed"
HERE: Final = "q"
DEAD, OLD, OTHER, NOWHERE = "dead", "old", "other", "nowhere"

#: What becomes of messages that leave it.
FATES: Final = ("acknowledged", "rejected", "purged", "expired", "dead_lettered", "moved")

FILTERS: Final[dict[str | None, Callable[[int | None], bool]]] = {
    None: lambda key: True,
    "k = 1": lambda key: key == 1,
    "k IN (1, 2)": lambda key: key in (1, 2),
    "k IS NULL": lambda key: key is None,
}


@attrs.define(eq=False)
class Message:
    """One message, wherever it is."""

    uid: int
    priority: int
    key: int | None
    durable: bool
    #: By the wall clock, ms; 0: never, or at once.
    expires: int = 0
    due: int = 0
    place: str = HERE
    state: str = READY
    #: Its number in the queue; 0: it has none yet.
    number: int = 0
    #: How often it came back for sure, and until when it waits.
    returns: int = 0
    until: int = 0
    #: It may have been handed out in a life that ended without saying so.
    perhaps: bool = False
    holder: Reader | None = None
    #: Why it left the queue; '': it never did.
    why: str = ""

    @property
    def rank(self) -> tuple[int, int]:
        """The less, the sooner it goes out."""
        return -self.priority, self.number


@attrs.define(eq=False)
class Reader:
    """A consumer of the queue."""

    window: int
    filter: str | None
    tags: dict[int, Message] = attrs.field(factory=dict)

    def wants(self, message: Message) -> bool:
        return FILTERS[self.filter](message.key)


@attrs.frozen
class Rules:
    """The settings of the queue's address."""

    attempts: int
    redelivery_delay_ms: int
    dead_letters: bool
    keeps_old: bool


@attrs.define(eq=False)
class Account:
    """The queue, and where messages go from it."""

    rules: Rules
    now: int
    messages: dict[int, Message] = attrs.field(factory=dict)
    readers: list[Reader] = attrs.field(factory=list)
    paused: bool = False
    #: By xid: who is held by a transaction that is prepared, and what that sends; times count from its commit.
    prepared: dict[bytes, tuple[list[int], list[Message]]] = attrs.field(factory=dict)
    #: In this life: what was added, and what became of messages.
    counts: Counter[str] = attrs.field(factory=Counter)

    def here(self, *states: str) -> list[Message]:
        """The messages of the queue in these states, as they are to go out."""
        found = [one for one in self.messages.values() if one.place == HERE and one.state in states]
        return sorted(found, key=lambda message: message.rank)

    def at(self, place: str) -> set[int]:
        """Who is there."""
        return {message.uid for message in self.messages.values() if message.place == place}

    # -- in

    def add(self, message: Message) -> None:
        """It is placed."""
        self.messages[message.uid] = message
        message.state = SCHEDULED if message.due > self.now else READY
        if message.state == READY:
            self.counts["added"] += 1

    # -- out

    def deliver(self, reader: Reader, tag: int, uid: int) -> Message:
        """A consumer got it: might it?"""
        message = self.messages[uid]
        assert (message.place, message.state) == (HERE, READY), f"{message} was delivered"
        assert reader.wants(message) and len(reader.tags) < reader.window and not self.paused
        message.state, message.holder = UNACKED, reader
        reader.tags[tag] = message
        return message

    def acknowledge(self, reader: Reader, tags: Iterable[int]) -> None:
        for tag in tags:
            self._leave(reader.tags.pop(tag), NOWHERE, "acknowledged")

    def reject(self, reader: Reader, tags: Iterable[int]) -> None:
        for tag in tags:
            self._leave(reader.tags.pop(tag), DEAD if self.rules.dead_letters else NOWHERE, "rejected")

    def give_back(self, reader: Reader, tags: Iterable[int], delay_ms: int | None) -> None:
        """They come back, and may have reached an application."""
        for tag in list(tags):
            self._come_back(reader.tags.pop(tag), delay_ms)

    def _come_back(self, message: Message, delay_ms: int | None) -> None:
        if 0 < message.expires <= self.now:
            self._expire(message)
        elif self.rules.dead_letters and message.returns + 1 >= self.rules.attempts:
            self._leave(message, DEAD, "dead_lettered")
        else:
            message.returns += 1
            self.counts["redelivered"] += 1
            wait = self.rules.redelivery_delay_ms if delay_ms is None else delay_ms
            self._wait(message, wait)

    def prepare(self, xid: bytes, reader: Reader, tags: Iterable[int], sends: list[Message]) -> None:
        """They are a transaction's, until it is decided."""
        self.prepared[xid] = [reader.tags.pop(tag).uid for tag in tags], sends
        for uid in self.prepared[xid][0]:
            self.messages[uid].holder = None

    def decide(self, xid: bytes, *, commit: bool) -> None:
        """It is committed, or rolled back."""
        held, sends = self.prepared.pop(xid)
        for message in [self.messages[uid] for uid in held if self.messages[uid].place == HERE]:
            self._leave(message, NOWHERE, "acknowledged") if commit else self._come_back(message, None)
        for message in sends if commit else ():
            message.expires += self.now if message.expires else 0
            message.due += self.now if message.due else 0
            self.add(message)

    def leave(self, reader: Reader, *, handed: bool) -> None:
        """A consumer goes; ``handed``: it had handed over everything, or else nothing."""
        self.readers.remove(reader)
        if handed:
            self.give_back(reader, reader.tags, None)
        for message in reader.tags.values():
            self._wait(message, 0)
            self._look_at(message)

    def _wait(self, message: Message, wait_ms: int) -> None:
        message.holder = None
        message.state = DELAYED if wait_ms else READY
        message.until = self.now + wait_ms if wait_ms else 0

    def _leave(self, message: Message, place: str, why: str) -> None:
        message.place, message.why, message.holder = place, why, None
        message.number = message.returns = message.until = 0
        message.perhaps = False
        if why in ("dead_lettered", "rejected", "expired"):
            message.expires = 0
        self.counts[why] += 1

    def _expire(self, message: Message) -> None:
        self._leave(message, OLD if self.rules.keeps_old else NOWHERE, "expired")

    # -- the clock

    def pass_time(self, ms: int) -> None:
        """It is later."""
        self.now += ms
        for message in list(self.messages.values()):
            self._look_at(message)

    def _look_at(self, message: Message) -> None:
        if message.place == OTHER and 0 < message.expires <= self.now:
            message.place = NOWHERE
        if message.place != HERE or message.state == UNACKED:
            return
        if message.state == SCHEDULED and message.due <= self.now:
            message.state, message.due = READY, 0
            self.counts["added"] += 1
        if message.state != SCHEDULED and 0 < message.expires <= self.now:
            self._expire(message)
        elif message.state == DELAYED and message.until <= self.now:
            self._wait(message, 0)

    # -- operators

    def purge(self) -> int:
        """What nobody holds goes."""
        gone = self.here(READY, DELAYED)
        for message in gone:
            self._leave(message, NOWHERE, "purged")
        late = self.here(SCHEDULED)
        for message in late:
            message.place = NOWHERE
        return len(gone) + len(late)

    def move(self, filter: str | None, limit: int) -> int:
        """What waits goes elsewhere."""
        wanted = [message for message in self.here(READY, DELAYED) if FILTERS[filter](message.key)][:limit]
        for message in wanted:
            self._leave(message, OTHER, "moved")
        return len(wanted)

    def redrive(self, place: str) -> int:
        """What went there comes back."""
        back = [message for message in self.messages.values() if message.place == place]
        for message in back:
            message.place, message.why, message.expires = HERE, "", 0
            self.add(message)
        return len(back)

    # -- another life

    def restart(self) -> None:
        """The node was killed, with everything on disk."""
        self.readers.clear()
        held = {uid for uids, _ in self.prepared.values() for uid in uids}
        for _, sends in self.prepared.values():
            sends[:] = [message for message in sends if message.durable]
        for message in self.messages.values():
            if not message.durable and message.place != NOWHERE:
                message.place = NOWHERE
            elif message.place == HERE and message.state == UNACKED:
                message.perhaps = True
                if message.uid not in held:
                    self._wait(message, 0)
            message.holder = None
        self.counts.clear()
        self.counts["added"] = len(self.here(READY, DELAYED, UNACKED))
        self.pass_time(0)

    def copy(self) -> Account:
        """It as it is now."""
        return copy.deepcopy(self)

    # -- what is seen

    def agrees(self, seen: dict[int, tuple[str, str, int]], places: dict[str, set[int]]) -> None:
        """Compare all that is there; ``seen``: state and number in the queue, by message."""
        mine = {message.uid: message.state for message in self.messages.values() if message.place == HERE}
        theirs = {uid: state for uid, (state, _, _) in seen.items()}
        assert mine == theirs, sorted(mine.items() ^ theirs.items())
        for uid, (_, _, number) in seen.items():
            message = self.messages[uid]
            assert message.number in (0, number), f"{message} has number {number}"
            message.number = number
        for place, there in places.items():
            assert self.at(place) == there, (place, self.at(place), there, self.messages)

    def conserves(self, statistics: dict[str, Any]) -> None:
        """What came in is what went out and what is there, and the queue says so."""
        states = Counter(message.state for message in self.messages.values() if message.place == HERE)
        there = {"ready": READY, "delivering": UNACKED, "delayed": DELAYED, "scheduled": SCHEDULED}
        for name, state in there.items():
            assert statistics[name] == states[state], (name, statistics[name], states)
        for name in ("added", "redelivered", *FATES):
            assert statistics[name] == self.counts[name], (name, statistics[name], self.counts)
        assert self.counts["added"] == sum(self.counts[name] for name in FATES) + states.total() - states[SCHEDULED]

    def nobody_starves(self) -> None:
        """Whoever has room has got what it wants."""
        for reader in self.readers:
            if len(reader.tags) < reader.window and not self.paused:
                left = [message for message in self.here(READY) if reader.wants(message)]
                assert not left, f"{left[0]} waits, and {reader.filter!r} has room"

    def nobody_is_overtaken(self, delivered: list[Message], waited: set[int]) -> None:
        """What was ready all along went before whatever is less urgent, or younger."""
        left = [message for message in self.here(READY) if message.uid in waited]
        for message in delivered:
            reader = message.holder
            for other in left if reader is not None else ():
                assert not reader.wants(other) or message.rank < other.rank, f"{message} before {other}"
