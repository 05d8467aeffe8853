"""A cursor over many lives of a node: whatever is sent, read, pinned, acknowledged, cut off or taken over."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest

from meshq.wire import KIND_CONTROL, KIND_HEADERS, Envelope, encode_map
from tests.broker.kit import House, RawClient, make_core
from tests.broker.logs import FakeLog
from tests.broker.test_cursors import Time

TTL_MS = 500
STEPS = 50


@attrs.define
class Sent:
    """A message: whether it is durable, and expires; ``lives``: how many lives of the node had begun."""

    durable: bool
    short: bool
    lives: int
    confirmed: bool = False

    @property
    def must_be_read(self) -> bool:
        """Whether nothing excuses that nobody ever reads it."""
        return self.durable and self.confirmed and not self.short


class Lives:
    """A node whose queue has a cursor, and what is known of that from outside."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.time = Time()
        # Where all is durable, little covers the numbers that were given.
        self.soft = self.rng.choice((0.0, 0.0, 0.3))
        self.sent: list[Sent] = []
        #: By number the message that was read there.
        self.seen: dict[int, int] = {}
        self.high = 1
        #: Up to here it is acknowledged for sure, or may be; and what is pinned for sure.
        self.acked = self.maybe = 1
        self.pinned: set[int] = set()
        self.fence = self.epoch = self.lives = 0
        self.former: list[int] = []
        #: All that was ever read; and how often.
        self.read: set[int] = set()
        self.looks = 0
        self.deleted = False
        self.settle(House(make_core(FakeLog(), now_ms=self.time, elapsed_ms=self.time)))
        self.client.call("create_queue", name="q")
        self.house.rest()
        self.take()

    def settle(self, house: House) -> None:
        """Begin a life of the node."""
        self.house, house.auto = house, False
        self.lives += 1
        self.owners = 0
        self.client: RawClient = house.client()
        self.sender: RawClient = house.client()
        self.channel = self.sender.produce(producer=b"%016d" % self.lives)
        house.rest()
        self.sender.numbers[self.channel] = 0

    def call(self, operation: str, **arguments: Any) -> dict[str, Any] | None:
        """Ask for something; None: a crash has come before the answer."""
        self.client.call(operation, queue="q", name="c", **arguments)
        if self.rng.random() < 0.1:
            self.crash()
            return None
        self.house.rest()
        answer = self.client.answer(self.client.calls)
        assert answer is not None
        return {**answer.named, "code": answer.code}

    def crash(self) -> None:
        """Begin a new life with what is on the disk, and by chance with some of what was on its way there."""
        log = self.house.log
        cut = self.rng.choice(log.cuts())
        records = log.recovered(cut, self.rng)
        self.settle(House(make_core(log.after_crash(cut), records=records, now_ms=self.time, elapsed_ms=self.time)))
        self.house.core.schedule_all_dispatches()
        self.house.core.pending.run()

    # -- what happens

    def take(self) -> None:
        """Take the cursor, as a new owner, when the lease of the last one is over."""
        while True:
            self.time.now += 1_001
            self.house.core.clock_moved()
            self.owners += 1
            token = f"{self.lives}.{self.owners}"
            values = self.call("open_cursor", token=token, lease_ms=1_000)
            if values is not None:
                break
        assert not values["held"] and values["fence"] > max([self.fence, *self.former]), "a fence is given once"
        self.former.append(self.fence)
        self.fence = values["fence"]
        if values["epoch"] != self.epoch:
            assert self.deleted or not self.epoch, "a cursor goes by being deleted only"
            self.deleted, self.epoch, self.pinned = False, values["epoch"], set()
            self.acked = self.maybe = values["processed"]
            self.seen = {number: uid for number, uid in self.seen.items() if number in self.there()}
        assert self.acked <= values["processed"] <= self.maybe

    def there(self) -> set[int]:
        """The numbers of all messages in the queue."""
        runs = self.house.queue().runs()
        return {view.first + row for view in runs for row, state in enumerate(view.states) if state != 2}

    def send(self) -> None:
        """Send some messages, which are confirmed or not."""
        rng = self.rng
        durable, uids, envelopes = rng.random() >= self.soft, [], []
        for _ in range(rng.choice((1, 1, 2, 5))):
            short, headers = rng.random() < 0.3, {}
            if short:
                headers["x"] = TTL_MS
            elif rng.random() < 0.2:
                headers["d"] = rng.choice((300, 3_000))
            if rng.random() < 0.2:
                headers["g"] = rng.choice("ab")
            uids.append(len(self.sent))
            self.sent.append(Sent(durable, short, self.lives))
            kind = rng.choice((4, 4, 9, 0)) << 8 | (KIND_HEADERS | KIND_CONTROL if headers else 0)
            envelopes.append(Envelope(kind, b"", encode_map(headers) if headers else b"", b""))
        self.sender.put(self.channel, *(b"%d" % uid for uid in uids), envelopes=envelopes, durable=durable)
        if rng.random() < 0.7:
            self.house.rest()
            for uid in uids:
                self.sent[uid].confirmed = True

    def wait(self) -> None:
        """Let time pass."""
        self.time.now += self.rng.choice((100, 400, 700, 5_000))
        self.house.core.clock_moved()

    def pin(self) -> None:
        """Pin what is below some number."""
        number = self.rng.randint(self.acked, max(self.acked, self.high))
        values = self.call("pin_cursor", fence=self.fence, number=number)
        if values is not None:
            assert not values["code"]
            self.pinned |= {one for one in self.there() if self.acked <= one < number}

    def ack(self) -> None:
        """Acknowledge up to some number; an owner that was replaced tries it, too."""
        number = self.rng.randint(self.acked, max(self.acked, self.high))
        if self.rng.random() < 0.3:
            values = self.call("ack_cursor", fence=self.rng.choice(self.former), number=self.high)
            assert values is None or values["code"], "an owner that was replaced has acknowledged"
            return
        self.maybe = max(self.maybe, number)
        values = self.call("ack_cursor", fence=self.fence, number=number)
        if values is not None:
            assert not values["code"] and max(self.acked, number) <= values["processed"] <= self.maybe
            self.acked = self.maybe = values["processed"]

    def delete(self) -> None:
        """Delete the cursor, and register it anew."""
        if self.rng.random() < 0.2:
            self.deleted = True
            self.call("delete_cursor")
            self.take()

    # -- what has to be so

    def look(self) -> None:
        """Read all that is not acknowledged, and ask for its holes."""
        values = self.call("renew_cursor", fence=self.fence)
        if values is None:
            return
        assert not values["code"]
        low, high = values["processed"], values["high"]
        assert self.acked <= low <= self.maybe and high >= self.high, "neither falls"
        self.acked = self.maybe = low
        reading = self.client.consume(browse=True, lo=low, hi=high, cursor="c", fence=self.fence)
        self.house.rest()
        read = {got.sequence: int(got.body) for got in self.client.got(reading)}
        assert list(read) == sorted(read), "in order"
        for number, uid in read.items():
            known = self.seen.get(number)
            assert known in (None, uid), f"{number} had {known}, and has {uid}"
            assert known is not None or number >= self.high, f"{number} appeared below the high mark {self.high}"
        self.high = high
        kinds = self.kinds(low, high)
        assert sorted([*kinds, *read]) == list(range(low, high)), "messages and holes are all numbers, each once"
        for number in [number for number in self.seen if number >= low and number not in read]:
            message, kind = self.sent[self.seen.pop(number)], kinds[number]
            fine = {"expired": message.short and number not in self.pinned, "lost": not message.durable}
            assert fine.get(kind, False), f"{number} is gone as {kind}: {message}"
        self.seen |= read
        self.read.update(read.values())
        self.looks += 1

    def kinds(self, low: int, high: int) -> dict[int, str]:
        """By number the kind of its hole."""
        found: dict[int, str] = {}
        more = True
        while more:
            values = self.client.call("holes", queue="q", lo=low, hi=high)
            if values is None:
                self.house.rest()
                answer = self.client.answer(self.client.calls)
                assert answer is not None
                values = answer.named
            for row in range(len(values) // 3):
                for number in range(values[f"lo{row}"], values[f"hi{row}"]):
                    assert number not in found
                    found[number] = values[f"kind{row}"]
                low = values[f"hi{row}"]
            more = values["more"]
        return found

    def run(self) -> None:
        """Do something at random, and look."""
        for _ in range(STEPS):
            step = self.rng.choices(
                (self.send, self.wait, self.pin, self.ack, self.crash, self.take, self.delete, self.look),
                (6, 3, 2, 3, 1, 1, 1, 4),
            )[0]
            step()
            self.house.check()
            assert not self.sender.all_closed() and not self.client.all_closed()
        self.time.now += 10_000
        self.house.core.clock_moved()
        self.house.rest()
        self.looks = 0
        while not self.looks:
            self.look()
        missing = [uid for uid, message in enumerate(self.sent) if uid not in self.read and message.must_be_read]
        assert missing == [], "confirmed messages were never to be read"


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_a_cursor_loses_nothing_and_doubles_nothing(seed: int) -> None:
    Lives(seed).run()
