"""A whole queue over several lives, driven through frames, beside an account of what it ought to do.

100,000 steps.  After each of them everything is on disk, and the account agrees: who holds what, what waits, what went
where, what the queue says of itself.  Half of the queues leave all but their first runs on the disk, and now and then
the next step comes while pages are on their way: then the account agrees when they are there.  Now and then the node is
killed, between two steps or in the middle of one; then every message is as it was before that step or as it is after
it.  Transactions are prepared and decided, over any number of lives.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from meshq.broker.queue._run import DELAYED as ROW_DELAYED
from meshq.broker.queue._run import GONE as ROW_GONE
from meshq.broker.queue._run import UNACKED as ROW_HELD
from meshq.settings import AddressSettings
from meshq.wire import (
    FLAG_REJECT,
    FLAG_RETURN,
    KIND_CONTROL,
    KIND_HEADERS,
    KIND_PROPERTIES,
    Envelope,
    FrameType,
    RunView,
    encode_map,
    encode_ranges,
)
from tests.broker.account import (
    DEAD,
    DELAYED,
    FATES,
    FILTERS,
    HERE,
    NOWHERE,
    OLD,
    OTHER,
    READY,
    SCHEDULED,
    UNACKED,
    Account,
    Message,
    Reader,
    Rules,
)
from tests.broker.kit import GIB, RawClient, make_house, read_deliver, widen
from tests.broker.logs import FakeLog
from tests.broker.pages import FakePages
from tests.broker.preparing_queue import PreparingRules
from tests.broker.test_delays import WallClock

pytestmark = pytest.mark.exhaustive

STEPS: Final = 100
#: A life that has seen so few steps is not ended by another one.
YOUNG: Final = 5
EXAMPLES: Final = 400
#: For all steps on one slow core that other programs use, too.
TIMEOUT_S: Final = 3_600
PLACES: Final = (DEAD, OLD, OTHER)
STATES: Final = {ROW_HELD: UNACKED, ROW_DELAYED: DELAYED}

#: How many steps there were, and in how many of them the queue had pages, read some, wrote some, and left some on their
#: way; and the least share of each.
MET: Final[Counter[str]] = Counter()
SHARES: Final = {"paged": 0.1, "read": 0.02, "spilled": 0.005, "waiting": 0.002}

MESSAGE: Final = st.tuples(
    st.sampled_from([4, 4, 4, 1, 9]),
    st.sampled_from([None, 1, 1, 2]),
    # A time to live, or a delay, ms.
    st.sampled_from([(0, 0), (0, 0), (0, 0), (50, 0), (400, 0), (0, 30), (0, 300)]),
)
RUN: Final = st.tuples(st.lists(MESSAGE, min_size=1, max_size=8), st.sampled_from([True, True, True, False]))
READER: Final = st.tuples(st.sampled_from([1, 3, 20]), st.sampled_from(list(FILTERS)))
FATE: Final = st.sampled_from(["acknowledge", "acknowledge", "reject", "return", "return later"])


def envelope(priority: int, key: int | None, ttl_ms: int, delay_ms: int) -> Envelope:
    """What a message has besides its body."""
    headers = {**({"x": ttl_ms} if ttl_ms else {}), **({"d": delay_ms} if delay_ms else {})}
    kind = priority << 8 | (KIND_PROPERTIES if key is not None else 0)
    kind |= KIND_CONTROL | KIND_HEADERS if headers else 0
    properties = encode_map({"k": key}) if key is not None else b""
    return Envelope(kind, b"", encode_map(headers) if headers else b"", properties)


class WholeQueue(PreparingRules, RuleBasedStateMachine):
    """The steps."""

    def __init__(self) -> None:
        super().__init__()
        self.made = self.lives = self.age = 0
        self.account: Account | None = None
        #: What was ready after the step before.
        self.ready_before: set[int] = set()
        #: Calls of the disk that come to their end in the next step, if not all do.
        self.hops: int | None = None
        # A move has begun and waits for the disk.
        self.moving = False

    @initialize(
        attempts=st.sampled_from([2, 3]),
        delay=st.sampled_from([0, 0, 100]),
        dead=st.sampled_from([True, True, False]),
        old=st.booleans(),
        paged=st.sampled_from([True, False]),
    )
    def begin(self, attempts: int, delay: int, dead: bool, old: bool, paged: bool) -> None:
        self.wall = WallClock()
        self.paged = paged
        self.account = Account(Rules(attempts, delay, dead, old), self.wall.now)
        address = AddressSettings(
            max_delivery_attempts=attempts,
            redelivery_delay=delay / 1_000,
            dead_letter_address=DEAD if dead else None,
            expiry_address=OLD if old else None,
        )
        self.settings = {HERE: address}
        if paged:
            # Each queue leaves all but the first of its runs on the disk.
            self.settings[HERE] = attrs.evolve(address, max_size_bytes=1)
            self.settings["#"] = AddressSettings(max_size_bytes=1)
        self.live(FakeLog())

    def live(self, log: FakeLog) -> None:
        """A life begins, and the clock has run on."""
        self.lives += 1
        self.age = 0
        self.hops = None
        records = log.recovered()
        # When memory is small, what is found is left where it is.
        memory = 1 if self.paged else GIB
        # Every other life begins by indexes: runs come up without their content.
        self.house = make_house(
            log,
            records=records,
            settings=self.settings,
            now_ms=self.wall,
            memory=memory,
            excerpts=self.lives % 2 == 0,
        )
        widen(self.house, GIB)
        self.pages = FakePages(self.house)
        self.client: RawClient = self.house.client()
        self.sender = self.client.produce(producer=b"life%012d" % self.lives)
        for name in PLACES:
            self.client.call("create_queue", name=name)
        self.wall.move(self.house, 0)
        self.house.rest()
        self.pages.rest()
        log.checkpoint(self.house.core.checkpoint())
        self.house.rest()
        self.client.frames.clear()
        self.channels: dict[int, Reader] = {}

    # -- what happens

    @rule(run=RUN)
    def send(self, run: Any) -> None:
        self.do_send(*run)
        self.settle_down()

    def do_send(self, messages: list[Any], durable: bool) -> None:
        assert self.account is not None
        bodies, envelopes, made = self.draw_messages(messages, durable, self.account.now)
        for message in made:
            self.account.add(message)
        self.client.put(self.sender, *bodies, envelopes=envelopes, durable=durable)

    def draw_messages(
        self, messages: list[Any], durable: bool, now: int
    ) -> tuple[list[bytes], list[Envelope], list[Message]]:
        bodies, envelopes, made = [], [], []
        for priority, key, (ttl, delay) in messages:
            self.made += 1
            bodies.append(b"%d" % self.made)
            envelopes.append(envelope(priority, key, ttl, delay))
            expires, due = now + ttl if ttl else 0, now + delay if delay else 0
            made.append(Message(self.made, priority, key, durable, expires, due))
        return bodies, envelopes, made

    def draw_run(self, data: st.DataObject) -> Any:
        return data.draw(RUN)

    @precondition(lambda self: len(self.channels) < 4)
    @rule(reader=READER)
    def open(self, reader: tuple[int, str | None]) -> None:
        options = {"filter": reader[1]} if reader[1] is not None else {}
        channel = self.client.consume(HERE, reader[0], **options)
        self.channels[channel] = Reader(*reader)
        self.account.readers.append(self.channels[channel])  # type: ignore[union-attr]
        self.settle_down()

    @precondition(lambda self: any(reader.tags for reader in self.channels.values()))
    @rule(data=st.data(), fate=FATE)
    def settle(self, data: st.DataObject, fate: str) -> None:
        self.let_moves_end()
        self.do_settle(data, fate)
        self.settle_down()

    def do_settle(self, data: st.DataObject, fate: str) -> None:
        holders = [channel for channel, reader in self.channels.items() if reader.tags]
        channel = data.draw(st.sampled_from(holders))
        reader = self.channels[channel]
        held = sorted(reader.tags)
        first = data.draw(st.integers(0, len(held) - 1))
        tags = [held[first]]
        for tag in held[first + 1 : first + data.draw(st.integers(1, 6))]:
            if tag == tags[-1] + 1:
                tags.append(tag)
        flags, stamp = {"acknowledge": (0, 0), "reject": (FLAG_REJECT, 0)}.get(fate, (FLAG_RETURN, 0))
        assert self.account is not None
        match fate:
            case "acknowledge":
                self.account.acknowledge(reader, tags)
            case "reject":
                self.account.reject(reader, tags)
            case "return":
                self.account.give_back(reader, tags, None)
            case _:
                stamp = 81
                self.account.give_back(reader, tags, 80)
        self.client.send(
            FrameType.SETTLE,
            flags=flags,
            channel=channel,
            count=1,
            stamp=stamp,
            table=encode_ranges([(tags[0], tags[-1])]),
        )

    @precondition(lambda self: self.channels)
    @rule(data=st.data(), handed=st.booleans())
    def leave(self, data: st.DataObject, handed: bool) -> None:
        self.let_moves_end()
        channel = data.draw(st.sampled_from(list(self.channels)))
        self.account.leave(self.channels.pop(channel), handed=handed)  # type: ignore[union-attr]
        self.client.leave(channel, 1 << 40 if handed else 0)
        self.settle_down()

    @rule(ms=st.sampled_from([1, 30, 100, 500]))
    def pass_time(self, ms: int) -> None:
        self.let_moves_end()
        self.account.pass_time(ms)  # type: ignore[union-attr]
        self.wall.move(self.house, ms)
        self.settle_down()

    @rule()
    def pause_or_resume(self) -> None:
        assert self.account is not None
        self.client.call("resume_queue" if self.account.paused else "pause_queue", name=HERE)
        self.account.paused = not self.account.paused
        self.settle_down()

    @precondition(lambda self: self.made % 5 == 0)
    @rule()
    def purge(self) -> None:
        self.be_quiet()
        removed = self.account.purge()  # type: ignore[union-attr]
        assert self.client.call("purge_queue", name=HERE) == {"removed": removed}
        self.settle_down()

    @rule(filter=st.sampled_from(list(FILTERS)), limit=st.sampled_from([1, 3, 1_000]))
    def move(self, filter: str | None, limit: int) -> None:
        self.be_quiet()
        self.do_move(filter, limit)
        self.settle_down()

    def do_move(self, filter: str | None, limit: int) -> None:
        moved = self.account.move(filter, limit)  # type: ignore[union-attr]
        options = {"filter": filter} if filter is not None else {}
        answer = self.client.call("move_messages", name=HERE, address=OTHER, limit=limit, **options)
        assert answer in (None, {"moved": moved})
        self.moving = answer is None

    @rule(place=st.sampled_from(PLACES))
    def redrive(self, place: str) -> None:
        self.be_quiet()
        back = self.account.redrive(place)  # type: ignore[union-attr]
        answer = self.client.call("redrive", name=place)
        assert answer == {"moved": back} or (answer is None and self.pages.busy)
        self.moving = answer is None
        self.settle_down()

    @rule()
    def checkpoint(self) -> None:
        self.house.log.checkpoint(self.house.core.checkpoint())
        self.settle_down()

    @precondition(lambda self: self.paged)
    @rule(hops=st.integers(0, 4))
    def let_the_disk_wait(self, hops: int) -> None:
        """In the next step pages are on their way, and stay there."""
        self.hops = hops

    # -- the end of a life

    @precondition(lambda self: self.age >= YOUNG)
    @rule(later=st.sampled_from([0, 0, 200]))
    def kill(self, later: int) -> None:
        """All is on disk."""
        assert self.account is not None
        self.be_quiet()
        self.wall.now += later
        self.account.now += later
        self.account.restart()
        self.live(self.house.log.after_crash())
        self.settle_down()

    @rule(data=st.data(), what=st.sampled_from(["send", "settle", "move"]))
    def kill_in_the_middle(self, data: st.DataObject, what: str) -> None:
        """Something has begun, and the disk has some of it."""
        assert self.account is not None
        if what == "settle" and not any(reader.tags for reader in self.channels.values()):
            return
        self.be_quiet()
        before = self.account.copy()
        self.house.auto = False
        match what:
            case "send":
                self.do_send(*data.draw(RUN))
            case "settle":
                self.do_settle(data, data.draw(FATE))
            case _:
                self.do_move(None, 3)
        log = self.house.log
        cut = data.draw(st.sampled_from(log.cuts()))
        before.restart()
        self.account.restart()
        self.live(log.after_crash(cut))
        self.choose(before)
        self.settle_down()

    def choose(self, before: Account) -> None:
        """Every message is as it was, or as it would be."""
        after = self.account
        assert after is not None
        seen, places = self.seen(), self.places()
        where = {uid: place for place, there in places.items() for uid in there}
        for uid, message in after.messages.items():
            place = HERE if uid in seen else where.get(uid, NOWHERE)
            state = seen[uid][0] if uid in seen else ""
            older = before.messages.get(uid)
            fits = [
                one
                for one in (message, older)
                if one is not None and one.place == place and (place != HERE or one.state == state)
            ]
            if older is None and place == NOWHERE:
                message.place = NOWHERE
                continue
            assert fits, f"{message} or {older} is {state} at {place}"
            if message not in fits:
                after.messages[uid] = fits[0]
            if uid in seen:
                after.messages[uid].returns = seen[uid][1]
        statistics = self.house.core.router.statistics(self.house.queue(HERE))
        # How many were taken up, and how many of these had expired, follows from what was found.
        after.counts = Counter({name: statistics[name] for name in ("added", "redelivered", *FATES)})

    # -- what is there

    def seen(self) -> dict[int, tuple[str, int, int]]:
        """State, returns and number of every message in the queue."""
        queue = self.house.queue(HERE) if HERE in self.house.core.router.queues else None
        found: dict[int, tuple[str, int, int]] = {}
        for view in (*queue.runs(), *queue.scheduled) if queue is not None else ():
            content = RunView(self.pages.content(view.run))
            for row, state in enumerate(view.states):
                if state != ROW_GONE:
                    name = STATES.get(state, READY) if view.first else SCHEDULED
                    number = view.first + row if view.first else 0
                    found[int(content.body(row))] = name, view.returns(row), number
        return found

    def places(self) -> dict[str, set[int]]:
        """Who is elsewhere."""
        found: dict[str, set[int]] = {}
        for place in PLACES:
            found[place] = {
                int(RunView(self.pages.content(view.run)).body(row))
                for view in self.house.queue(place).runs()
                for row, state in enumerate(view.states)
                if state != ROW_GONE
            }
        return found

    def settle_down(self) -> None:
        """All is on disk, everything that can be delivered is, and the account agrees."""
        account = self.account
        assert account is not None
        waited = {message.uid for message in account.here(READY)} & self.ready_before
        delivered = self.take()
        if self.paged:
            self.pages.press()
        self.age += 1
        MET["steps"] += 1
        if self.hops is not None and self.pages.busy:
            for _ in range(self.hops):
                self.pages.hop()
            self.hops = None
            delivered += self.take()
            if self.pages.busy:
                # What comes next meets pages that are on their way.
                MET["waiting"] += 1
                self.ready_before = waited & {message.uid for message in account.here(READY)}
                return
        before = self.pages.reads, self.pages.spills
        self.pages.rest()
        MET["read"] += self.pages.reads > before[0]
        MET["spilled"] += self.pages.spills > before[1]
        delivered += self.take()
        self.compare(delivered, waited)

    def be_quiet(self) -> None:
        """What waits for the disk is done."""
        if self.pages.busy:
            self.hops = None
            self.settle_down()

    def let_moves_end(self) -> None:
        """What comes back while a move waits for the disk may be moved or not: here it comes afterwards."""
        if self.moving:
            self.be_quiet()
            self.moving = False

    def take(self) -> list[Message]:
        """What was delivered."""
        account = self.account
        assert account is not None
        self.house.rest()
        delivered = []
        for frame in self.client.frames:
            if frame.type is FrameType.DELIVER:
                for got in read_deliver(frame):
                    message = account.deliver(self.channels[frame.channel], got.tag, int(got.body))
                    assert got.delivery_count >= message.returns + 1
                    assert message.perhaps or self.lives > 1 or got.delivery_count == message.returns + 1
                    delivered.append(message)
        assert not self.client.all_closed()
        self.client.frames.clear()
        return delivered

    def compare(self, delivered: list[Message], waited: set[int]) -> None:
        """The account agrees."""
        account = self.account
        assert account is not None
        seen = self.seen()
        account.agrees({uid: (state, "", number) for uid, (state, _, number) in seen.items()}, self.places())
        for uid, (_, returns, _) in seen.items():
            assert account.messages[uid].returns == returns
        MET["paged"] += any(view.run.paged for view in self.house.queue(HERE).runs()) if seen else 0
        account.nobody_starves()
        account.nobody_is_overtaken(delivered, waited)
        self.ready_before = {message.uid for message in account.here(READY)}
        if HERE in self.house.core.router.queues:
            account.conserves(self.house.core.router.statistics(self.house.queue(HERE)))
        self.house.check()


@pytest.mark.timeout(TIMEOUT_S)
class TestWholeQueue(WholeQueue.TestCase):
    """All of it, which must have met pages."""

    settings = settings(max_examples=EXAMPLES, stateful_step_count=STEPS)

    @classmethod
    def tearDownClass(cls) -> None:
        """A good part of the steps had to do with pages, whatever was drawn."""
        super().tearDownClass()
        for what, share in SHARES.items():
            assert MET[what] >= share * MET["steps"], MET


def test_the_account_is_short_enough_to_be_read() -> None:
    assert len((Path(__file__).parent / "account.py").read_text(encoding="utf-8").splitlines()) <= 300
