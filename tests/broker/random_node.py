"""A node that users, operators and another node do random things to, and that crashes at random."""

from __future__ import annotations

import random
from typing import Any

import attrs

from meshq.broker import RemoteBinding
from meshq.permissions import Permissions
from meshq.selector import parse_filter
from meshq.settings import AddressSettings, Security
from meshq.wire import (
    FLAG_DURABLE,
    FLAG_REJECT,
    FLAG_RETURN,
    FLAG_TRANSACTED,
    FLAG_UNCOUNTED,
    KIND_CONTROL,
    KIND_HEADERS,
    KIND_ID,
    KIND_PROPERTIES,
    Envelope,
    FrameType,
    Transact,
    encode_map,
    encode_ranges,
    encode_run,
)
from tests.broker.kit import House, RawClient, make_core
from tests.broker.logs import FakeLog
from tests.broker.node_states import differences, state_of
from tests.broker.peers import RawPeer
from tests.broker.test_clocks import TwoClocks

USERS = ("u1", "u2")
SECURITY = Security(
    users=dict.fromkeys(USERS, "canary"),
    roles={name: {"all"} for name in USERS},
    permissions={"#": Permissions(send={"all"}, consume={"all"}, create={"all"}, manage={"all"})},
)
SETTINGS = {
    "q": AddressSettings(
        duplicate_id_cache_size=6, dead_letter_address="dead", expiry_address="old", max_delivery_attempts=2
    ),
    "r": AddressSettings(
        duplicate_id_cache_size=6, dead_letter_address="q", redelivery_delay=1.0, max_delivery_attempts=3
    ),
    "lv": AddressSettings(default_last_value_key="k", dead_letter_address="dead"),
    "m": AddressSettings(expiry_address="old"),
    "far": AddressSettings(auto_create_queues=False, expiry_address="old", duplicate_id_cache_size=6),
}
#: The other node's queues: number, name, address, routing.
REMOTE = ((7, "far", "far", "anycast"), (8, "q", "q", "anycast"), (9, "s1", "m", "multicast"))
FORWARD = "$meshq.cluster.mesh.there"
LINK = b"the link's name!"
#: What is done, and how often beside the others.
WEIGHTS = {
    "send": 14,
    "consume": 4,
    "acknowledge": 6,
    "give_again": 3,
    "reject": 2,
    "give_again_uncounted": 1,
    "leave": 2,
    "drop": 1,
    "pass_time": 3,
    "jump": 1,
    "move": 2,
    "redrive": 1,
    "purge": 1,
    "bind": 3,
    "unbind": 2,
    "give_back": 3,
    "forwarded": 3,
    "transact": 3,
    "decide": 2,
    "checkpoint": 2,
    "resize": 1,
}


@attrs.define(eq=False)
class Reader:
    """A consumer, and what it has settled."""

    client: RawClient
    channel: int
    settled: list[int] = attrs.field(factory=list)


class RandomNode:
    """A node with queues of each kind; every draw comes from the seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        #: Every second one reads excerpts of runs at its start, which have no bodies.
        self.excerpts = seed % 2 == 1
        self.clocks = TwoClocks()
        self.log = FakeLog()
        #: What was done, for whoever looks for the cause.
        self.done: list[str] = []
        #: Syncs come when the draw says so; else after each step.
        self.lazy = False
        self.messages = self.transactions = 0
        self.begin([])
        self.define()

    def define(self) -> None:
        definitions = self.house.core.definitions
        for name in ("q", "r", "lv"):
            definitions.create_queue(name, address=None, routing="anycast", durable=True)
        definitions.create_queue("q2", address="r", routing="anycast", durable=True, filter=parse_filter("k > 1"))
        for name, text in (("s1", ""), ("s2", "k = 1")):
            filter = parse_filter(text) if text else None
            definitions.create_queue(name, address="m", routing="multicast", durable=True, filter=filter)
        if self.rng.random() < 0.5:
            exclusive = self.rng.random() < 0.5
            about = {"address": "q", "forwarding_address": "r", "filter": parse_filter("k = 3")}
            definitions.diverts.create("d", **about, exclusive=exclusive)
        self.house.rest()

    def begin(self, records: Any) -> None:
        """A life begins, and nobody is connected."""
        core = make_core(
            self.log,
            records=records,
            settings=SETTINGS,
            now_ms=self.clocks,
            elapsed_ms=self.clocks.passed,
            security=SECURITY,
            excerpts=self.excerpts,
        )
        self.house = House(core)
        self.clients: dict[str, RawClient] = {}
        self.readers: list[Reader] = []
        self.senders: dict[tuple[str, str, bytes], int] = {}
        self.peer: RawPeer | None = None

    # -- lives

    def step(self) -> None:
        done = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        self.done.append(done)
        getattr(self, done)()
        if not self.lazy:
            self.house.rest()
        elif self.rng.random() < 0.3:
            self.log.sync(self.rng.choice(self.log.cuts()))
        self.house.check()

    def crash_at_rest(self) -> list[str]:
        """All is on the disk when the node dies; what is not after it as it was before."""
        held = self.rng.random() < 0.5
        if not held:
            for session in list(self.house.sessions.by_number.values()):
                self.house.sessions.end(session)
            self.house.core.pending.run()
        self.house.rest()
        before = self._state(held=held)
        self.log = self.log.after_crash()
        self.begin(self.log.recovered(rng=self.rng))
        found = differences(before, self._state(held=held))
        self.house.check()
        return found

    def crash_at_work(self) -> None:
        """The last steps are not synced, and any part of them is on the disk; what was the state is not known then."""
        self.house.auto, self.lazy = False, True
        for _ in range(self.rng.randrange(1, 12)):
            self.step()
        self.lazy = False
        self.log = self.log.after_crash(self.rng.choice(self.log.cuts()))
        self.begin(self.log.recovered(rng=self.rng))
        self.house.check()

    def _state(self, *, held: bool) -> Any:
        return state_of(self.house.core, held=held, bodies=not self.excerpts)

    # -- who is there

    def as_user(self, user: str) -> RawClient:
        client = self.clients.get(user)
        if client is None or client.closed:
            client = self.clients[user] = self.house.client()
            assert client.attached is not None
            session = self.house.sessions.by_number[client.attached.session]
            # As if it had logged in: its end counts it out.
            self.house.sessions._of_user[user] = self.house.sessions._of_user.get(user, 0) + 1
            session.principal.owner = ("client", user)
            session.principal.rights = self.house.core.access.of(session.principal.owner)
            self.senders = {key: channel for key, channel in self.senders.items() if key[0] != user}
        return client

    def anybody(self) -> RawClient:
        return self.as_user(self.rng.choice(USERS))

    def has(self, name: str) -> bool:
        return name in self.house.core.router.queues

    def drop(self) -> None:
        client = self.clients.pop(self.rng.choice(USERS), None)
        if client is not None and not client.closed:
            client.close()

    # -- what is sent

    def envelope(self) -> Envelope:
        rng = self.rng
        kind, duplicate, headers, properties = rng.choice([4, 4, 4, 7, 2]) << 8, b"", {}, {}
        if rng.random() < 0.5:
            duplicate = b"id%d" % rng.randrange(14)
            kind |= KIND_ID
        for name, share, values in (("x", 0.15, [500, 3_000, 60_000]), ("d", 0.12, [700, 5_000]), ("g", 0.1, "ab")):
            if rng.random() < share:
                headers[name] = rng.choice(values)
        if headers:
            kind |= KIND_CONTROL | KIND_HEADERS
        if rng.random() < 0.7:
            properties["k"] = rng.randrange(4)
            kind |= KIND_PROPERTIES
        kept = encode_map(headers) if headers else b"", encode_map(properties) if properties else b""
        return Envelope(kind, duplicate, *kept)

    def run(self, count: int) -> tuple[list[bytes], list[Envelope]]:
        """Messages with bodies that no others have."""
        bodies = [b"%d" % (self.messages + 1 + index) for index in range(count)]
        self.messages += count
        return bodies, [self.envelope() for _ in bodies]

    def send(self) -> None:
        rng = self.rng
        user = rng.choice(USERS)
        client = self.as_user(user)
        address = rng.choice(["q", "q", "r", "lv", "m", "far", "r::q2"])
        # Of one address only.
        producer = rng.choice([b"producer-A-16b", b"producer-B-16b"]) + address.encode()[:2].ljust(2, b"-")
        key = (user, address, producer)
        if key not in self.senders:
            channel = client.produce(address, producer)
            if channel not in client.numbers:
                return
            self.senders[key] = channel
        channel = self.senders[key]
        bodies, envelopes = self.run(rng.choice([1, 1, 2, 5]))
        gap = rng.randrange(1, 4) if rng.random() < 0.1 else 0
        client.put(channel, *bodies, envelopes=envelopes, first=client.numbers[channel] + 1 + gap if gap else 0)
        if client.closed or client.all(FrameType.CLOSE):
            # A number that it may not give.
            self.clients.pop(user)

    def transact(self) -> None:
        rng = self.rng
        user = rng.choice(USERS)
        client = self.as_user(user)
        self.transactions += 1
        sent = acked = 0
        for _ in range(rng.choice([1, 2])):
            bodies, envelopes = self.run(rng.choice([1, 3]))
            run = encode_run(bodies, envelopes)
            header = Transact(
                transaction=self.transactions,
                address=rng.choice(["q", "r", "lv", "m"]),
                producer=b"producer-tx-" + user.encode() + b"--",
                number=self.messages - len(bodies) + 1,
                sent=sent,
            )
            client.calls += 1
            about: dict[str, Any] = {"count": run.rows, "flags": FLAG_DURABLE, "table": run.table, "body": run.body}
            client.send(FrameType.TRANSACT, header, first=client.calls, **about)
            sent += run.rows
        if (some := self.some(client)) is not None:
            reader, tags = some
            about = {"channel": reader.channel, "first": 0, "stamp": self.transactions, "count": 1}
            for tag in tags:
                client.send(FrameType.SETTLE, flags=FLAG_TRANSACTED, table=encode_ranges([(tag, tag)]), **about)
                acked += 1
        end, about = rng.choice(["commit", "roll_back", "prepare"]), {"transaction": self.transactions}
        if end != "roll_back":
            about |= {"sent": sent, "acked": acked}
        if end == "prepare":
            about["xid"] = b"x%d" % self.transactions
        client.call(end, **about)

    def decide(self) -> None:
        waiting = [(one.xid, one.user) for one in self.house.core.transactions.two_phase]
        if waiting:
            xid, user = self.rng.choice(waiting)
            self.as_user(user).call(self.rng.choice(["commit_prepared", "roll_back_prepared"]), xid=xid)

    # -- what is received

    def consume(self) -> None:
        client = self.anybody()
        queue = self.rng.choice(["q", "r", "lv", "s1", "s2", "dead", "old", "q2", "far"])
        options = {"filter": self.rng.choice(["k = 1", "k > 1"])} if self.rng.random() < 0.3 else {}
        self.readers.append(Reader(client, client.consume(queue, window=self.rng.choice([1, 3, 100]), **options)))

    def there(self, client: RawClient | None = None) -> list[Reader]:
        """The consumers that still are there: all, or a client's."""
        self.readers = [one for one in self.readers if not one.client.closed and one.client in self.clients.values()]
        return [one for one in self.readers if client is None or one.client is client]

    def some(self, client: RawClient | None = None) -> tuple[Reader, list[int]] | None:
        """Messages that a consumer holds, to be settled now."""
        readers = self.there(client)
        if not readers:
            return None
        reader = self.rng.choice(readers)
        held = [got.tag for got in reader.client.got(reader.channel) if got.tag not in reader.settled]
        tags = self.rng.sample(held, min(len(held), self.rng.choice([1, 1, 3])))
        reader.settled += tags
        return (reader, tags) if tags else None

    def acknowledge(self, flags: int = 0) -> None:
        if (some := self.some()) is not None:
            reader, tags = some
            for tag in tags:
                reader.client.settle(reader.channel, (tag, tag), flags=flags)

    def give_again(self) -> None:
        self.acknowledge(FLAG_RETURN)

    def give_again_uncounted(self) -> None:
        self.acknowledge(FLAG_RETURN | FLAG_UNCOUNTED)

    def reject(self) -> None:
        self.acknowledge(FLAG_REJECT)

    def leave(self) -> None:
        if readers := self.there():
            reader = self.rng.choice(readers)
            self.readers.remove(reader)
            reader.client.leave(reader.channel, self.rng.choice([0, 1, 5]))

    # -- the clock, and operators

    def pass_time(self) -> None:
        self.clocks.now += self.rng.choice([10, 500, 3_000, 61_000])
        self._look_at_clock()

    def jump(self) -> None:
        self.clocks.jump(self.rng.choice([-5_000, 5_000]))
        self._look_at_clock()

    def _look_at_clock(self) -> None:
        while self.house.core.clock_moved():
            pass
        self.house.after_frame()

    def move(self) -> None:
        client = self.anybody()
        name, address = self.rng.sample(["q", "r", "lv", "dead", "old"], 2)
        limit = {"limit": self.rng.choice([1, 3])} if self.rng.random() < 0.5 else {}
        if self.has(name):
            client.call("move_messages", name=name, address=address, **limit)

    def redrive(self) -> None:
        name = self.rng.choice(["dead", "old", "q"])
        if self.has(name):
            self.as_user("u1").call("redrive", name=name)

    def purge(self) -> None:
        if self.rng.random() < 0.2:
            self.as_user("u1").call("purge_queue", name=self.rng.choice(["q", "lv", "s1"]))

    def resize(self) -> None:
        about = {"dead_letter_address": "dead", "expiry_address": "old", "max_delivery_attempts": 2}
        size = self.rng.choice([2, 6, 9])
        self.as_user("u1").call("set_address_settings", pattern="q", duplicate_id_cache_size=size, **about)

    def checkpoint(self) -> None:
        if not self.lazy:
            self.log.checkpoint(self.house.core.checkpoint())
            self.log.sync()

    # -- the other node

    def bind(self) -> None:
        forward = self.house.core.definitions.forward_queue(FORWARD)
        found = [
            RemoteBinding(forward, "on_demand", *about, self.rng.choice([0, 1]), ())
            for about in REMOTE
            if self.rng.random() < 0.8
        ]
        self.house.core.router.replace(forward.number.to_bytes(8, "big"), found)

    def unbind(self) -> None:
        forward = self.house.core.definitions.forward_queue(FORWARD)
        self.house.core.router.replace(forward.number.to_bytes(8, "big"), [])

    def give_back(self) -> None:
        if self.has(FORWARD):
            self.as_user("u1").call("give_back", node_id="there", force=True)

    def forwarded(self) -> None:
        """Runs come from it: for queues that are here, or for one that is gone."""
        rng = self.rng
        if self.peer is None or self.peer.closed:
            self.peer = RawPeer(self.house)
            self.peer.shake()
            self.channel = self.peer.open()
            self.forwarded_to = self.house.core.ingress.links.get(LINK, 0)
        bodies, envelopes = self.run(rng.choice([1, 3]))
        address = rng.choice(["q", "m"])
        queues = [queue.number for queue in self.house.core.router.queues.values() if queue.address == address]
        queues = rng.sample(queues, min(len(queues), rng.choice([1, 2]))) if rng.random() < 0.85 else [999]
        about: dict[str, Any] = {"address": address, "number": self.messages, "producer": b"producer-elsewhe"}
        self.peer.forward(
            self.channel, self.forwarded_to + 1, *bodies, queues=queues or [999], envelopes=envelopes, **about
        )
        self.forwarded_to += len(bodies)
