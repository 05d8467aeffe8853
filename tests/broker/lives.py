"""Random histories of a broker over several lives, beside a plain account of what must come back.

Every message has a body of its own.  For each queue the account knows where the journal stood before and after a
message was placed, and before and after it was settled; what a crash may leave follows from where it cut the journal.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs

from meshq.broker import Core
from meshq.broker.records import MARKS, RUN, decode_marks, decode_run
from meshq.settings import AddressSettings
from meshq.wire import FLAG_REJECT, FLAG_RETURN, RunView, duplicate_ids
from tests.broker.kit import House, RawClient, make_core, with_ids
from tests.broker.logs import FakeLog

ADDRESSES = {"work": "anycast", "news": "multicast", "q": "anycast"}
QUEUES = {"w1": "work", "w2": "work", "n1": "news", "n2": "news", "q": "q"}
IDS_MAX = 5
SETTINGS = {"#": AddressSettings(duplicate_id_cache_size=IDS_MAX)}
BLOCKING = {"#": AddressSettings(duplicate_id_cache_size=IDS_MAX, full_policy="block")}


@attrs.define
class Copy:
    """A message in a queue."""

    sequence: int
    #: The journal's last position before it was placed, and its run's own; and the same for its end.
    before: int
    placed: int
    gone_before: int | None = None
    gone_after: int | None = None
    granted: bool = False
    #: How often it came back, each time with the journal's last position before that and after it.
    counts: list[tuple[int, int, int]] = attrs.field(factory=list)

    def may_count(self, cut: int) -> set[int]:
        """What the journal may say of it that ends at ``cut``."""
        sure = [0, *(count for _, after, count in self.counts if after <= cut)][-1]
        found = {sure, *(count for before, after, count in self.counts if before < cut < after)}
        if self.gone_before is not None and self.gone_before < cut:
            # It came back, and went with its queue, in one step.
            found.add(sure + 1)
        return found


def snapshot(core: Core) -> dict[str, Any]:
    """All that a journal has to give back."""
    queues: dict[str, list[tuple[int, bytes, int]]] = {}
    for name, queue in core.router.queues.items():
        if queue.durable:
            queues[name] = [
                (view.first + row, RunView(view.run.content).body(row), view.deliveries(row))
                for view in queue.runs()
                for row in range(len(view.states))
                if view.states[row] != 2
            ]
    producers = core.ingress.producers
    return {
        "queues": queues,
        "numbers": {name: core.router.queues[name].number for name in queues},
        "last": {name: core.router.queues[name].last for name in queues},
        "marks": {name: core.router.queues[name].lists.high_watermark for name in queues},
        "addresses": {name: address.routing for name, address in core.router.addresses.items()},
        "ids": {name: window(core, name) for name in core.router.addresses},
        "producers": {
            (user, name): (mark, list(marks.gaps(name)))
            for user, marks in producers._users.items()
            for name, mark in marks.stored()
        },
        "used": core.memory.used_bytes,
        "last number": core.router.last_number,
    }


def window(core: Core, address: str) -> list[bytes]:
    """The ids that an address knows, oldest first."""
    return [one for chunk in core.router.addresses[address].duplicates._chunks for one in chunk.ids[chunk.start :]]


class Lives:
    """One broker, its journal, its client, and the account."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.bodies = 0
        #: By queue name and body.
        self.copies: dict[str, dict[bytes, Copy]] = {}
        #: The highest number that was ever visible, by the queue's number.
        self.seen: dict[int, int] = {}
        self.begin(FakeLog())

    def begin(self, log: FakeLog, records: Any = ()) -> None:
        """A life begins."""
        self.log = log
        self.house = House(make_core(log, records=records, settings=SETTINGS))
        self.house.auto = False
        self.core = self.house.core
        self.checkpoint()
        self.client = self.open_client()
        self.consumers: dict[int, str] = {}
        self.settled: dict[int, set[int]] = {}
        self.lives_refused: list[tuple[bytes, int, int]] = []

    def open_client(self) -> RawClient:
        client = self.house.client(window_bytes=1 << 26)
        self.producers: dict[str, int] = {}
        for index, address in enumerate(ADDRESSES):
            producer = bytes([self.house.sessions.by_number[1].number, index, len(self.log.records) % 251]) * 5 + b"p"
            if address in self.core.router.addresses:
                self.producers[address] = client.produce(address, producer + b"")
        self.log.sync()
        for channel in self.producers.values():
            client.numbers.setdefault(channel, 0)
        return client

    # -- steps

    def step(self) -> None:
        """Something happens."""
        steps: list[tuple[int, Callable[[], object]]] = [
            (6, self.put), (5, self.settle), (3, self.sync), (2, self.consume), (1, self.leave), (1, self.purge),
            (1, self.create), (1, self.delete), (1, self.checkpoint), (1, self.refuse), (1, self.repeat),
        ]  # fmt: skip
        (action,) = self.rng.choices([step for _, step in steps], [weight for weight, _ in steps])
        before = self.log.last
        action()
        self.look(before)
        self.house.check()

    def create(self) -> None:
        name = self.rng.choice(list(QUEUES))
        durable = self.rng.random() < 0.85
        address = QUEUES[name]
        if name not in self.core.router.queues:
            self.client.call("create_queue", name=name, address=address, routing=ADDRESSES[address], durable=durable)
            self.copies.setdefault(name, {})
            if address not in self.producers:
                producer = bytes([len(self.log.records) % 251]) * 15 + b"x"
                self.producers[address] = self.client.produce(address, producer)
                self.log.sync()
                self.client.numbers.setdefault(self.producers[address], 0)

    def delete(self) -> None:
        if self.rng.random() < 0.4 and self.core.router.queues:
            name = self.rng.choice(list(self.core.router.queues))
            self.client.call("delete_queue", name=name)

    def put(self) -> None:
        if not self.producers:
            return self.create()
        channel = self.rng.choice(list(self.producers.values()))
        bodies, ids = [], []
        for _ in range(self.rng.choice([1, 1, 2, 3, 6])):
            self.bodies += 1
            bodies.append(b"m%d" % self.bodies)
            ids.append(self.rng.choice(["", "", f"i{self.bodies}", f"i{self.rng.randint(1, self.bodies)}"]))
        durable = self.rng.random() < 0.8
        self.client.put(channel, *bodies, envelopes=with_ids(*ids), durable=durable)
        return None

    def refuse(self) -> None:
        """A durable run is refused for want of room."""
        self.log.full = True
        if self.producers:
            channel = self.rng.choice(list(self.producers.values()))
            before = len(self.client.refused())
            self.bodies += 1
            last = self.client.put(channel, b"m%d" % self.bodies)
            if len(self.client.refused()) > before:
                state = self.house.sessions.by_number[self.client.attached.session].producers.channels[channel]  # type: ignore[union-attr]
                self.lives_refused.append((state.producer, last, self.log.last))
        self.log.full = False

    def repeat(self) -> None:
        """A message that was stored in this life is sent again."""
        if self.producers:
            channel = self.rng.choice(list(self.producers.values()))
            confirmed = [number for on, number in self.client.confirmed if on == channel]
            state = self.house.sessions.by_number[self.client.attached.session].producers.channels[channel]  # type: ignore[union-attr]
            if confirmed and not self.core.ingress.producers.lacks(state.producer, confirmed[-1], confirmed[-1]):
                self.client.put(channel, b"again", first=confirmed[-1], flags=2)

    def consume(self) -> None:
        if len(self.consumers) < 4 and self.core.router.queues:
            name = self.rng.choice(list(self.core.router.queues))
            channel = self.client.consume(name, self.rng.choice([1, 3, 50]))
            self.consumers[channel] = name
            self.settled[channel] = set()

    def held(self, channel: int) -> list[int]:
        return [message.tag for message in self.client.got(channel) if message.tag not in self.settled[channel]]

    def settle(self) -> None:
        channels = [channel for channel in self.consumers if self.held(channel)]
        if not channels:
            return self.consume()
        channel = self.rng.choice(channels)
        held = self.held(channel)
        chosen = sorted(self.rng.sample(held, self.rng.randint(1, len(held))))
        flags = self.rng.choice([0, 0, 0, FLAG_REJECT, FLAG_RETURN])
        self.settled[channel].update(chosen)
        self.client.settle(channel, *[(tag, tag) for tag in chosen], flags=flags)
        return None

    def leave(self) -> None:
        if self.consumers:
            channel = self.rng.choice(list(self.consumers))
            held = self.held(channel)
            self.client.leave(channel, self.rng.choice([0, min(held, default=0), 1 << 40]))
            del self.consumers[channel]

    def purge(self) -> None:
        if self.core.router.queues and self.rng.random() < 0.5:
            self.client.call("purge_queue", name=self.rng.choice(list(self.core.router.queues)))

    def sync(self) -> None:
        self.log.sync(self.rng.choice(self.log.cuts()))

    def checkpoint(self) -> None:
        self.log.checkpoint(self.core.checkpoint())

    # -- the account

    def look(self, before: int) -> None:
        """Compare what is there with the account, and carry on."""
        assert not self.client.all_closed(), self.client.frames[-1]
        for channel in [one for one, name in self.consumers.items() if name not in self.core.router.queues]:
            del self.consumers[channel]
        pending = [pair for _, views, _ in self.core.release_queue._entries for pair in views]
        visible = [(queue, view) for queue in self.core.router.queues.values() for view in queue.runs()]
        now: dict[str, dict[bytes, tuple[int, int, int, int]]] = {}
        for queue, view in [*visible, *pending]:
            if self.core.router.queues.get(queue.name) is not queue:
                continue
            content = RunView(view.run.content)
            for row, state in enumerate(view.states):
                if state != 2:
                    found = now.setdefault(queue.name, {})
                    position = view.run.position if queue.durable else 0
                    found[content.body(row)] = (view.first + row, position, state, view.deliveries(row))
        for queue, view in visible:
            self.seen[queue.number] = max(self.seen.get(queue.number, 0), view.first + len(view.states) - 1)
        for name, found in now.items():
            copies = self.copies.setdefault(name, {})
            for body, (sequence, position, state, count) in found.items():
                copy = copies.setdefault(body, Copy(sequence, before, position))
                if count != (copy.counts[-1][2] if copy.counts else 0):
                    copy.counts.append((before, self.log.last, count))
                assert copy.gone_after is None and copy.sequence == sequence
                copy.granted |= state == 1
        for name, copies in self.copies.items():
            for body, copy in copies.items():
                if body not in now.get(name, {}) and copy.gone_after is None:
                    copy.gone_before, copy.gone_after = before, self.log.last

    # -- a crash

    def crash(self) -> None:
        """The process dies; the disk keeps what was synced, and some of the rest."""
        cut = self.rng.choice(self.log.cuts())
        records = self.log.recovered(cut, self.rng)
        old, old_log = self.core, self.log
        log = self.log.after_crash(cut)
        fresh = make_core(log, records=records, settings=SETTINGS)
        found = snapshot(fresh)
        self.compare(found, cut)
        runs = {view.run for queue in fresh.router.queues.values() for view in queue.runs()}
        assert found["used"] == sum(run.size_bytes for run in runs)
        self.compare_ids(old, fresh, cut)
        self.compare_producers(old, fresh, cut)
        # Again from the same records, and again once the first thing was written: all the same.
        assert snapshot(make_core(log.after_crash(), records=log.recovered(), settings=SETTINGS)) == found
        # And from excerpts, where nothing is paged.
        short = make_core(log.after_crash(), records=log.recovered(), settings=BLOCKING, excerpts=True)
        assert snapshot(short) == found
        fresh.definitions.create_address("other", "anycast")
        later = snapshot(make_core(log.after_crash(), records=log.recovered(None, self.rng), settings=SETTINGS))
        for gone in (later["addresses"], later["ids"]):
            del gone["other"]
        assert later == found
        self.seen = {number: last for number, last in self.seen.items() if number in found["numbers"].values()}
        self.continue_from(old_log.after_crash(cut))

    def compare(self, found: dict[str, Any], cut: int) -> None:
        delivered = {}
        for record in self.log.records:
            if record.kind == MARKS and record.position <= cut:
                queue, _, mark = decode_marks(record.payload)
                delivered[queue] = mark[4]
        for name, messages in found["queues"].items():
            assert [sequence for sequence, _, _ in messages] == sorted({sequence for sequence, _, _ in messages})
            copies = self.copies.get(name, {})
            mark = delivered.get(found["numbers"][name], 0)
            for sequence, body, deliveries in messages:
                copy = copies[body]
                assert copy.sequence == sequence and 0 < copy.placed <= cut
                assert copy.gone_after is None or copy.gone_after > cut, f"{body!r} of {name} is back"
                counts = {max(count, int(sequence <= mark)) for count in copy.may_count(cut)}
                assert deliveries in counts, f"{body!r} of {name} came {deliveries} times, not {counts}"
                assert deliveries or not copy.granted, f"{body!r} of {name} comes again unmarked"
            there = {body for _, body, _ in messages}
            for body, copy in copies.items():
                kept = 0 < copy.placed <= cut and (copy.gone_before is None or cut <= copy.gone_before)
                assert not kept or body in there, f"{body!r} of {name} is lost"
            # No number that anybody has seen is given again.
            assert found["last"][name] >= self.seen.get(found["numbers"][name], 0)
        numbers = list(found["numbers"].values())
        assert len(set(numbers)) == len(numbers) and max(numbers, default=0) <= found["last number"]

    def compare_ids(self, old: Core, fresh: Core, cut: int) -> None:
        """What the window had of what is on disk is in it again."""
        on_disk: dict[str, list[bytes]] = {}
        for record in self.log.records:
            if record.kind == RUN and record.position <= cut:
                run = decode_run(record.payload)
                ids = duplicate_ids(run.content)
                skipped = dict.fromkeys(run.skipped)
                found = on_disk.setdefault(run.address, [])
                found += [one for row, one in enumerate(ids) if one and row not in skipped]
        for name in fresh.router.addresses:
            chunks = old.router.addresses[name].duplicates._chunks if name in old.router.addresses else ()
            had = [one for chunk in chunks if 0 < chunk.origin <= cut for one in chunk.ids[chunk.start :]]
            has = window(fresh, name)
            assert len(has) == len(set(has)) <= IDS_MAX
            durable = on_disk.get(name, [])
            assert set(has) <= set(durable)
            last_positions = {one: index for index, one in enumerate(durable)}
            assert has == sorted(has, key=last_positions.__getitem__)
            assert set(had) <= set(has)

    def compare_producers(self, old: Core, fresh: Core, cut: int) -> None:
        for record in self.log.records:
            if record.kind == RUN and record.position <= cut:
                run = decode_run(record.payload)
                last = run.number + run.content.rows - 1
                assert (fresh.ingress.producers.get(run.producer) or 0) >= last
                assert not fresh.ingress.producers.lacks(run.producer, run.number, last)
        for producer, mark in fresh.ingress.producers._users[""].stored():
            assert mark <= (old.ingress.producers.get(producer) or 0)
        for producer, number, _ in self.lives_refused:
            known = fresh.ingress.producers.get(producer) or 0
            assert number > known or fresh.ingress.producers.lacks(producer, number, number)

    def continue_from(self, log: FakeLog) -> None:
        self.begin(log, log.recovered())
        self.trim()

    def trim(self) -> None:
        """The account goes on from what a new life has found."""
        there = {name: {body for _, body, _ in messages} for name, messages in snapshot(self.core)["queues"].items()}
        for name in list(self.copies):
            copies = self.copies[name]
            self.copies[name] = {body: copy for body, copy in copies.items() if body in there.get(name, ())}
            for copy in self.copies[name].values():
                copy.gone_before = copy.gone_after = None
                copy.counts = []
        self.look(self.log.last)
