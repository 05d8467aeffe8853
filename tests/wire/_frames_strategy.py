"""Valid conversations, and everything that can be wrong with one: for the layer without I/O and for a real broker.

A ``Plan`` is what a client does; ``render`` turns it into frames that a node must accept, for a producer id and names
that the caller chooses, so that one broker can hear many of them.  A ``Mutation`` changes one thing about the frames;
``tests/wire/_mutations.py`` applies it.  Whoever plays a conversation to a real node sends the steps in turn, and
before a step with ``after_tag`` waits until that tag was delivered on the step's channel, or the connection ended.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Final, NamedTuple

import attrs
from hypothesis import strategies as st

from meshq import limits
from meshq.address import is_name
from meshq.wire import (
    COUNTER_MAX,
    FLAG_DURABLE,
    FLAG_REJECT,
    FLAG_RETURN,
    KIND_HEADERS,
    KIND_ID,
    KIND_PLAIN,
    KIND_PROPERTIES,
    MECHANISM_NONE,
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN,
    SCHEMAS,
    Answer,
    Attach,
    Attached,
    Authenticate,
    Authenticated,
    Call,
    Close,
    Consume,
    ConsumerLost,
    Deliver,
    Envelope,
    Forward,
    Frame,
    FrameType,
    Header,
    Hello,
    Leave,
    OutgoingStream,
    Produce,
    Refuse,
    RunBytes,
    Welcome,
    cut,
    encode_map,
    encode_ranges,
    encode_run,
    pick,
)

# -- parts


def envelope(kind: int) -> Envelope:
    """An envelope that has the parts which ``kind`` names."""
    return Envelope(
        kind,
        b"id-1" if kind & KIND_ID else b"",
        encode_map({"t": "text"}) if kind & KIND_HEADERS else b"",
        encode_map({"region": "emea", "n": 3}) if kind & KIND_PROPERTIES else b"",
    )


_MIXED: Final = encode_run([b"body"] * 9, [envelope(KIND_PLAIN | kind & 7) for kind in range(9)])
#: Runs as producers make them: of one and of many, plain and with everything, with empty and with large bodies.
RUNS: Final[tuple[RunBytes, ...]] = (
    encode_run([b"42 umbrellas"]),
    encode_run([b""]),
    encode_run([b"x"], [envelope(KIND_PLAIN | KIND_ID | KIND_HEADERS | KIND_PROPERTIES)]),
    encode_run([b"one", b"", b"three"]),
    encode_run([b"x" * 10] * 256),
    encode_run([b"y"] * 256, [envelope(KIND_PLAIN | KIND_PROPERTIES)] * 256),
    encode_run([bytes(1_000)] * 17, [envelope(KIND_PLAIN | KIND_ID)] * 17),
    encode_run([b"z"] * 3, [Envelope(priority << 8, b"", b"", b"") for priority in (0, 4, 9)]),
    _MIXED,
    pick(_MIXED, [2, 4, 8]),
)
#: Parts of runs, whose ends do not count from 0: legal in DELIVER only.
PARTS: Final[tuple[RunBytes, ...]] = (*RUNS, cut(_MIXED, 2, 7), cut(RUNS[4], 100, 101), cut(RUNS[6], 9, 17))

_text: Final = st.text(st.characters(codec="utf-8"), max_size=20)
_amount: Final = st.one_of(st.integers(0, 300), st.integers(0, COUNTER_MAX), st.just(COUNTER_MAX))
_identity: Final = st.binary(min_size=16, max_size=16)
_scalar: Final = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), _text, st.binary(max_size=9)
)


def _named(draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[Any, ...]:
    values = draw(st.dictionaries(_text, _scalar, max_size=5))
    return tuple(item for pair in values.items() for item in pair)


def _key_strategy(field: attrs.Attribute[Any]) -> st.SearchStrategy[Any]:
    kind = field.metadata["types"][0]
    if field.name == "counts" and kind is not bytes:
        pairs = st.dictionaries(st.integers(0, 255), st.integers(1, 99), max_size=5)
        return pairs.map(lambda counts: tuple(item for pair in counts.items() for item in pair))
    if field.name in ("arguments", "values"):
        return st.composite(_named)()
    if kind is list and field.metadata["items"] == (int,):
        return st.lists(st.integers(field.metadata["item_min"], 99), max_size=3).map(tuple)
    if kind is list:
        return st.lists(_text, max_size=3).map(tuple)
    if field.metadata.get("named"):
        return _text.filter(is_name)
    if field.name == "key":
        return _identity
    if size := field.metadata.get("size"):
        return st.binary(min_size=size, max_size=size)
    any_bytes = st.binary(max_size=min(40, field.metadata.get("size_max", 40)))
    return {int: _amount, str: _text.map(lambda text: text[:16]), bytes: any_bytes, bool: st.booleans()}[kind]


def header_of_type(schema: type[Header]) -> st.SearchStrategy[Header]:
    """Any header of one schema."""
    built = st.builds(schema, **{field.name: _key_strategy(field) for field in attrs.fields(schema)})
    return built.map(_possible)


def _possible(header: Header) -> Header:
    """A run that is forwarded names its queues, or one queue that is made if it is missing."""
    return attrs.evolve(header, queues=()) if isinstance(header, Forward) and header.queue else header


#: Any header of any schema.
headers: Final[st.SearchStrategy[Header]] = st.one_of([header_of_type(schema) for schema in SCHEMAS.values()])

# -- conversations


class Step(NamedTuple):
    """One frame of a conversation; before it is sent, this tag must have been delivered on its channel."""

    frame: Frame
    after_tag: int = 0


class Action(NamedTuple):
    """One thing that a client does; the numbers choose among what is possible at that moment."""

    name: str
    choice: int
    amount: int


@attrs.frozen
class Plan:
    """What a client does after the handshake, and whether it says good-bye."""

    actions: tuple[Action, ...]
    closes: bool = True

    def render(self, producer: bytes = bytes(16), prefix: str = "q-") -> list[Step]:
        """The frames of this client, in order, numbered; all its queues' names begin with ``prefix``."""
        talk = _Talk(producer, prefix)
        for action in self.actions:
            getattr(talk, action.name)(action.choice, action.amount)
        if self.closes:
            talk.say(FrameType.CLOSE, header=Close().encode())
        return talk.steps


class _Talk:
    """The client that a plan describes: knows what it has open, and says only what is legal."""

    def __init__(self, producer: bytes, prefix: str) -> None:
        self.steps: list[Step] = []
        self._producer = producer
        self._prefix = prefix
        self._outgoing = OutgoingStream()
        self._channel = 0
        self._call = 0
        self._producers: dict[int, str] = {}
        self._consumers: dict[int, list[Any]] = {}
        self._sent = 0
        # By queue: messages that it certainly got, and messages that were settled.
        self._placed: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        versions = Hello(oldest=PROTOCOL_VERSION_MIN, newest=PROTOCOL_VERSION, label="test")
        self.say(FrameType.HELLO, header=versions.encode())
        self.say(FrameType.AUTHENTICATE, header=Authenticate(mechanism=MECHANISM_NONE).encode())
        self.say(FrameType.ATTACH, header=Attach().encode())

    def say(self, frame_type: FrameType, *, after_tag: int = 0, **fields: Any) -> None:
        frame = Frame(frame_type, **fields)
        self._outgoing.number(frame, keep=False)
        self.steps.append(Step(frame, after_tag))

    def _next_call(self) -> int:
        self._call += 1
        return self._call

    def _queue(self, choice: int) -> str:
        return f"{self._prefix}{choice % 2}"

    def produce(self, choice: int, amount: int) -> None:
        # A producer's messages are numbered in one row, whatever its address: one channel is enough here.
        if not self._producers:
            self._channel += 1
            queue = self._producers[self._channel] = self._queue(choice)
            header = Produce(producer=self._producer, address=queue)
            self.say(FrameType.PRODUCE, channel=self._channel, first=self._next_call(), header=header.encode())

    def send(self, choice: int, amount: int) -> None:
        self.produce(choice, amount)
        ((channel, queue),) = self._producers.items()
        run = RUNS[choice % len(RUNS)]
        self.say(
            FrameType.SEND,
            flags=FLAG_DURABLE if amount & 1 else 0,
            channel=channel,
            first=self._sent + 1,
            stamp=1_700_000_000_000 + amount,
            count=run.rows,
            table=run.table,
            body=run.body,
        )
        self._sent += run.rows
        # Two messages of a run may have the same duplicate id: at least one of them is placed.
        ids = run.table[0] & KIND_ID or run is _MIXED or run is RUNS[-1]
        self._placed[queue] = self._placed.get(queue, 0) + (0 if ids else run.rows)

    def consume(self, choice: int, amount: int) -> None:
        self._channel += 1
        queue = self._queue(choice)
        if any(consumer[0] == queue for consumer in self._consumers.values()):
            # Nobody can tell which of two consumers gets what: the second one waits for nothing.
            queue = f"{self._prefix}idle-{self._channel}"
        window = amount % 300 + 1
        # Queue, window, tags settled, messages that were gone before.
        self._consumers[self._channel] = [queue, window, 0, self._gone.get(queue, 0)]
        header = Consume(queue=queue, window=window, window_bytes=limits.MIB)
        self.say(FrameType.CONSUME, channel=self._channel, first=self._next_call(), header=header.encode())

    def settle(self, choice: int, amount: int) -> None:
        for channel, consumer in self._consumers.items():
            queue, window, settled, gone = consumer
            given = min(self._placed.get(queue, 0) - gone, window)
            if settled < given:
                last = min(settled + 1 + amount % 40, given)
                middle = (settled + last) // 2
                ranges = [(settled + 1, last)] if middle <= settled else [(middle + 1, last), (settled + 1, middle)]
                consumer[2] = last
                self._gone[queue] = self._gone.get(queue, 0) + last - settled
                self.say(
                    FrameType.SETTLE,
                    after_tag=last,
                    flags=(0, FLAG_RETURN, FLAG_REJECT)[choice % 3],
                    channel=channel,
                    first=self._next_call() if amount & 1 else 0,
                    count=len(ranges),
                    table=encode_ranges(ranges),
                )
                return

    def leave(self, choice: int, amount: int) -> None:
        if self._consumers:
            channel = next(iter(self._consumers))
            settled = self._consumers.pop(channel)[2]
            header = Leave(handed=settled + 1)
            self.say(FrameType.LEAVE, channel=channel, first=self._next_call(), header=header.encode())

    def call(self, choice: int, amount: int) -> None:
        operation, arguments = (
            ("flush", ()),
            ("queues", ("after", "")),
            ("queue", ("name", self._queue(amount))),
            ("create_queue", ("name", self._queue(amount), "address", self._queue(amount), "durable", True)),
            ("purge_queue", ("name", self._prefix + "none")),
            ("no_such_operation", ("a", b"\x80", "b", 1.5, "c", None)),
        )[choice % 6]
        header = Call(operation=operation, arguments=arguments)
        self.say(FrameType.CALL, first=self._next_call(), header=header.encode())

    def sign(self, choice: int, amount: int) -> None:
        self.say((FrameType.PING, FrameType.PONG, FrameType.RECEIVED)[choice % 3])


ACTIONS: Final = ("produce", "send", "send", "consume", "consume", "settle", "settle", "leave", "call", "sign")
_action: Final = st.builds(Action, st.sampled_from(ACTIONS), st.integers(0, 255), st.integers(0, 999))
#: Valid conversations of a client.
plans: Final[st.SearchStrategy[Plan]] = st.builds(
    Plan, st.lists(_action, min_size=3, max_size=14).map(tuple), st.booleans()
)


def _said(frame_type: FrameType, header: Header | None = None, **fields: Any) -> Frame:
    return Frame(frame_type, header=header.encode() if header is not None else b"", **fields)


def _delivered(run: RunBytes) -> Frame:
    header = Deliver(
        address="orders", producer=bytes(16), number=7, sequence=9, base=run.base, counts=(run.rows - 1, 2)
    )
    return _said(FrameType.DELIVER, header, channel=2, first=1, count=run.rows, table=run.table, body=run.body, stamp=1)


_WELCOME: Final = Welcome(version=1, node_id=bytes(16), node_name="shop", mechanisms=(MECHANISM_NONE,))
#: What a node says before it says anything else.
_GREETING: Final = (
    _said(FrameType.WELCOME, _WELCOME),
    _said(FrameType.AUTHENTICATED, Authenticated()),
    _said(FrameType.ATTACHED, Attached(session=3, key=bytes(16))),
)
#: A frame of each type that a node says, deliveries of every kind among them.
_ANSWERS: Final = (
    _said(FrameType.CREDIT, first=limits.SEND_CREDIT_BYTES),
    _said(FrameType.ANSWER, Answer(values=("number", 0, "known", False)), first=1),
    _said(FrameType.ANSWER, Answer(code=64, text="there is no such thing"), first=2),
    _said(FrameType.CONFIRM, channel=1, first=256),
    _said(FrameType.REFUSE, Refuse(messages=3, code=65), channel=1, first=1),
    _said(FrameType.CONSUMER_LOST, ConsumerLost(code=70, text="the queue was deleted"), channel=2),
    _said(FrameType.PIECE, first=3, body=b"a block of a body"),
    _said(FrameType.PING),
    *map(_delivered, PARTS),
)


def _numbered(frames: list[Frame]) -> list[Step]:
    outgoing = OutgoingStream()
    steps = []
    for frame in frames:
        said = copy(frame)
        outgoing.number(said, keep=False)
        steps.append(Step(said))
    return steps


#: Valid conversations of a node, for the client's side.
answers: Final[st.SearchStrategy[list[Step]]] = st.lists(st.sampled_from(_ANSWERS), min_size=3, max_size=14).map(
    lambda frames: _numbered([*_GREETING, *frames])
)


class Mutation(NamedTuple):
    """One thing to be changed: which kind of change, at which frame, in what, and to what."""

    kind: str
    at: int
    what: int
    value: int


#: Changes after which the checksum is right again.
SEMANTIC: Final = (
    "field", "field", "field", "twin", "grown", "length", "header", "header", "header", "rows", "rows", "body", "order",
    "order", "state", "state", "range",
)  # fmt: skip
#: Damage to the bytes.
DAMAGE: Final = ("flip", "overwrite", "insert", "delete", "truncate")

_value: Final = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
#: Two semantic ones for each damage: most of what is tried is a frame that only its meaning can refuse.
mutations: Final[st.SearchStrategy[Mutation]] = st.builds(
    Mutation, st.sampled_from((*SEMANTIC, *DAMAGE)), st.integers(0, 63), st.integers(0, 255), _value
)
