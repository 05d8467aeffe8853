"""The msgpack headers of control frames, as typed classes: one schema per frame type.

A receiver may ignore an unknown key that begins with ``~``; any other unknown key refuses the frame.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal, Self, TypeVar

import attrs

from meshq import limits
from meshq.endpoint import PLACE_CHARACTERS_MAX
from meshq.errors import invariant
from meshq.ids import IDENTITY_BYTES
from meshq.wire._frames import COUNTER_MAX, FORMS, Frame, FrameType
from meshq.wire._header_schema import Header, list_of, name_of_node, scalar, sentence
from meshq.wire._link_headers import (
    TARGET_CHARACTERS_MAX,
    AddressCredit,
    Binding,
    BranchChange,
    Forward,
    LinkOpening,
    NodeNews,
)
from meshq.wire._msgpack import by_name, decode_map, encode_map
from meshq.wire._refusals import violation
from meshq.wire._replication_headers import Log, Logged, Replicate

Role = Literal["client", "peer"]
H = TypeVar("H", bound="Header")

#: Both nonces: as many bytes as the hash has, so that no two connections ever share one.
NONCE_BYTES: Final = 32
SALT_BYTES: Final = 16
#: A proof is an HMAC with SHA-256.
PROOF_BYTES: Final = 32
#: Of the nodes that have sent a client away one after another, an id and an instance each.
CAME_FROM_BYTES_MAX: Final = 8 * 2 * IDENTITY_BYTES
#: Of the nodes that have redirected a client in one attempt, an id each.
VISITED_BYTES_MAX: Final = 8 * IDENTITY_BYTES
_SCALARS: Final = (str, bytes, bool, int, float, type(None))


@attrs.frozen(kw_only=True)
class Hello(Header):
    """Client to server, first: the client's role and name, its protocol versions and features."""

    frame_type: ClassVar[FrameType] = FrameType.HELLO
    oldest: int = scalar((int,))
    newest: int = scalar((int,))
    role: str = scalar((str,), default="client", size_max=16)
    label: str = scalar((str,), default="", size_max=256)
    features: tuple[str, ...] = list_of(str)


@attrs.frozen(kw_only=True)
class Welcome(Header):
    """Server to client: the agreed version and features, the node, the authentication mechanisms."""

    frame_type: ClassVar[FrameType] = FrameType.WELCOME
    version: int = scalar((int,))
    node_id: bytes = scalar((bytes,), size=IDENTITY_BYTES)
    node_name: str = name_of_node()
    features: tuple[str, ...] = list_of(str)
    mechanisms: tuple[str, ...] = list_of(str)


@attrs.frozen(kw_only=True)
class Authenticate(Header):
    """Client to server: the chosen mechanism, and the user and nonce of ``scram-sha-256``."""

    frame_type: ClassVar[FrameType] = FrameType.AUTHENTICATE
    mechanism: str = scalar((str,), size_max=32)
    user: str = scalar((str,), default="", size_max=limits.USER_CHARACTERS_MAX)
    nonce: bytes = scalar((bytes,), default=b"", size_max=NONCE_BYTES)


@attrs.frozen(kw_only=True)
class Challenge(Header):
    """Server to client: salt, iterations and nonce for the proof."""

    frame_type: ClassVar[FrameType] = FrameType.CHALLENGE
    salt: bytes = scalar((bytes,), size=SALT_BYTES)
    iterations: int = scalar((int,))
    nonce: bytes = scalar((bytes,), size=NONCE_BYTES)


@attrs.frozen(kw_only=True)
class Proof(Header):
    """Client to server: the proof that the client knows the password, for this connection only."""

    frame_type: ClassVar[FrameType] = FrameType.PROOF
    proof: bytes = scalar((bytes,), size=PROOF_BYTES)


@attrs.frozen(kw_only=True)
class Authenticated(Header):
    """Server to client: the client is authenticated; the node's own proof, empty for ``none``."""

    frame_type: ClassVar[FrameType] = FrameType.AUTHENTICATED
    proof: bytes = scalar((bytes,), default=b"", size_max=PROOF_BYTES)


@attrs.frozen(kw_only=True)
class Attach(Header):
    """Client to server: ask for a session, or for the earlier one (``session`` and its ``key``).

    ``ttl_ms``: how long the session outlives its connection.  ``received``: the highest number received.
    ``came_from``: the nodes that have sent the client away because they hand over what they have, an id and an instance
    each; the server may refuse the session as long as it lacks some of that (``not_handed_over``).
    ``visited``: the ids of the nodes that have redirected the client since it began to connect, before them the one
    that has sent it to this handover's target; a balancer of the server sends it to none of them.
    """

    frame_type: ClassVar[FrameType] = FrameType.ATTACH
    session: int = scalar((int,), default=0)
    key: bytes = scalar((bytes,), default=b"", size_max=IDENTITY_BYTES)
    received: int = scalar((int,), default=0)
    ttl_ms: int = scalar((int,), default=60_000)
    window_bytes: int = scalar((int,), default=limits.CONFIRMATION_WINDOW_BYTES)
    came_from: bytes = scalar((bytes,), default=b"", size_max=CAME_FROM_BYTES_MAX, key="~came_from")
    visited: bytes = scalar((bytes,), default=b"", size_max=VISITED_BYTES_MAX, key="~visited")


@attrs.frozen(kw_only=True)
class Attached(Header):
    """Server to client: the session, whether it is resumed, and the highest frame number received from the client."""

    frame_type: ClassVar[FrameType] = FrameType.ATTACHED
    session: int = scalar((int,))
    key: bytes = scalar((bytes,), size=IDENTITY_BYTES)
    resumed: bool = scalar((bool,), default=False)
    received: int = scalar((int,), default=0)
    ttl_ms: int = scalar((int,), default=60_000)


@attrs.frozen(kw_only=True)
class Probe(Header):
    """Client to server, instead of ATTACH: ask whether the server serves clients, and for nothing else."""

    frame_type: ClassVar[FrameType] = FrameType.PROBE


@attrs.frozen(kw_only=True)
class Probed(Header):
    """Server to client, last: the answer to PROBE; the server serves clients, and has ``connections`` of them.

    A server that serves none answers with CLOSE, which says why.
    """

    frame_type: ClassVar[FrameType] = FrameType.PROBED
    connections: int = scalar((int,))


@attrs.frozen(kw_only=True)
class Close(Header):
    """Either way, last: why the connection ends.  ``code`` 0: in order, and the session ends with it.

    ``node_id``, ``instance``: the server, if it hands over what it has; then ``target`` is the id, ``target_name`` the
    name and ``target_place`` the URL of the node at which the client is to go on, empty if it can't be dialed.
    With ``use_another_server`` the server's balancer has chosen that node for this attempt to connect.
    """

    frame_type: ClassVar[FrameType] = FrameType.CLOSE
    code: int = scalar((int,), default=0)
    text: str = sentence()
    node_id: bytes = scalar((bytes,), default=b"", size_max=IDENTITY_BYTES, key="~node_id")
    instance: bytes = scalar((bytes,), default=b"", size_max=IDENTITY_BYTES, key="~instance")
    target: bytes = scalar((bytes,), default=b"", size_max=IDENTITY_BYTES, key="~target")
    target_name: str = scalar((str,), default="", size_max=limits.NODE_NAME_CHARACTERS_MAX, key="~target_name")
    target_place: str = scalar((str,), default="", size_max=PLACE_CHARACTERS_MAX, key="~target_place")


@attrs.frozen(kw_only=True)
class Produce(Header):
    """Open the frame's channel for sends to one address under a producer's id.

    ``window``: how many messages may be sent and not confirmed, if that is for the node to judge; 0: it is not.
    ``routing``: the routing type that the address has, or is made with on first use; empty: whichever.
    """

    frame_type: ClassVar[FrameType] = FrameType.PRODUCE
    producer: bytes = scalar((bytes,), size=IDENTITY_BYTES)
    address: str = scalar((str,), size_max=TARGET_CHARACTERS_MAX)
    window: int = scalar((int,), default=0)
    routing: str = scalar((str,), default="", key="~routing", size_max=16)


@attrs.frozen(kw_only=True)
class Send(Header):
    """The header of a run with FLAG_LARGE only: the channel on which the blocks of its one message's body have come.

    0: in this session they have not; the run was sent in an earlier one, and is stored already or refused.
    """

    frame_type: ClassVar[FrameType] = FrameType.SEND
    upload: int = scalar((int,), default=0)


@attrs.frozen(kw_only=True)
class Read(Header):
    """Ask for one block of the body of an unacked delivery: ``tag`` is the delivery's, ``block`` counts from 0."""

    frame_type: ClassVar[FrameType] = FrameType.READ
    tag: int = scalar((int,))
    block: int = scalar((int,))


@attrs.frozen(kw_only=True)
class Consume(Header):
    """Open the frame's channel for deliveries from a queue; with a ``filter`` only of messages that it accepts; with a
    ``subscription`` from the queue of that name on the address ``queue``, which has the filter then.

    ``rank``: 128 more than the consumer's priority.  ``exclusive``: no other consumer is served.
    ``browse``: look only; with ``lo`` in the order of the numbers, from this one up to, and without, ``hi``, or without
    an end if that is 0.  ``cursor``, ``fence``: for the owner of this cursor, with whose ownership the browse ends.
    ``routes``: of a network consumer, the ways on which its messages go, each the ids of the brokers with ``/`` between
    them, from the one with the consumers to the next one; only for who may manage the node.  It gets messages that have
    gone fewer than ``hops`` hops and have not been at the next broker; ``filter`` is what the consumers want.  Its
    ``subscription``, if any, is ``own``; or ``shared`` and durable, with a name that begins with ``$meshq.network.``.
    ``replay``: of a network consumer of a queue, the filter of what it gets, too, if nobody else accepts it, although
    brokers on the way have had it.
    """

    frame_type: ClassVar[FrameType] = FrameType.CONSUME
    queue: str = scalar((str,), size_max=TARGET_CHARACTERS_MAX)
    window: int = scalar((int,))
    window_bytes: int = scalar((int,))
    filter: str = scalar((str,), default="", size_max=limits.FILTER_BYTES_MAX)
    subscription: str = scalar((str,), default="", size_max=16)
    name: str = scalar((str,), default="", size_max=limits.ADDRESS_BYTES_MAX)
    durable: bool = scalar((bool,), default=False)
    rank: int = scalar((int,), default=limits.CONSUMER_PRIORITIES // 2)
    exclusive: bool = scalar((bool,), default=False)
    browse: bool = scalar((bool,), default=False)
    lo: int = scalar((int,), default=0)
    hi: int = scalar((int,), default=0)
    cursor: str = scalar((str,), default="", size_max=limits.ADDRESS_BYTES_MAX)
    fence: int = scalar((int,), default=0)
    routes: tuple[str, ...] = list_of(str, key="~routes")
    hops: int = scalar((int,), default=0, key="~hops")
    replay: str = scalar((str,), default="", size_max=limits.FILTER_BYTES_MAX, key="~replay")


@attrs.frozen(kw_only=True)
class Transact(Header):
    """A run that a transaction sends, which is answered as a call; ``first`` is its id.

    ``number``: of the first message, among all of its producer.  ``sent``: messages that the transaction sent before.
    """

    frame_type: ClassVar[FrameType] = FrameType.TRANSACT
    transaction: int = scalar((int,))
    address: str = scalar((str,), size_max=TARGET_CHARACTERS_MAX)
    producer: bytes = scalar((bytes,), size=IDENTITY_BYTES)
    number: int = scalar((int,))
    sent: int = scalar((int,))


@attrs.frozen(kw_only=True)
class Leave(Header):
    """Close the frame's channel.  For a consumer: every delivery tag below ``handed`` reached the application."""

    frame_type: ClassVar[FrameType] = FrameType.LEAVE
    handed: int = scalar((int,), default=0)


@attrs.frozen(kw_only=True)
class Call(Header):
    """An administrative call; ``first`` is its id.  ``arguments`` alternates names and values."""

    frame_type: ClassVar[FrameType] = FrameType.CALL
    operation: str = scalar((str,), size_max=64)
    arguments: tuple[Any, ...] = list_of(*_SCALARS)

    @property
    def named(self) -> dict[str, Any]:
        """Return the arguments by name."""
        return by_name(self.arguments, "the arguments of a call")


@attrs.frozen(kw_only=True)
class Answer(Header):
    """The answer to the call whose id is ``first``; ``code`` 0: it is done, ``values`` alternates names and values."""

    frame_type: ClassVar[FrameType] = FrameType.ANSWER
    code: int = scalar((int,), default=0)
    text: str = sentence()
    values: tuple[Any, ...] = list_of(*_SCALARS)

    @property
    def named(self) -> dict[str, Any]:
        """Return the values by name."""
        return by_name(self.values, "the values of an answer")


@attrs.frozen(kw_only=True)
class Refuse(Header):
    """The run of ``messages`` messages from number ``first`` on was refused: none of them was stored."""

    frame_type: ClassVar[FrameType] = FrameType.REFUSE
    messages: int = scalar((int,))
    code: int = scalar((int,))
    text: str = sentence()


@attrs.frozen(kw_only=True)
class ConsumerLost(Header):
    """The broker has closed the channel's consumer; ``code`` 0: a browse has shown everything."""

    frame_type: ClassVar[FrameType] = FrameType.CONSUMER_LOST
    code: int = scalar((int,))
    text: str = sentence()


_DELIVER_KEYS: Final = ("address", "producer", "number", "sequence")
#: A msgpack key, and the mark of an integer of 64 bits.
_SEQUENCE_KEY: Final = b"\xa8sequence"
_UINT64: Final = 0xCF
#: What follows the key ``number``: its value, the other key and its value.
_DELIVER_TAIL: Final = struct.Struct(f">BQ{len(_SEQUENCE_KEY)}sBQ")


@lru_cache(maxsize=1024)
def _deliver_prefix(address: str, producer: bytes) -> bytes:
    """Encode the keys that are the same for all runs of a producer: up to the key ``number``."""
    whole = encode_map({"address": address, "producer": producer, "number": 0, "sequence": 0})
    return whole[: -len(_SEQUENCE_KEY) - 2]


def deliver_header(address: str, producer: bytes, number: int, sequence: int) -> bytes:
    """Encode the header of a DELIVER frame with the four required keys only, as nearly all have: for every run."""
    return _deliver_prefix(address, producer) + _DELIVER_TAIL.pack(_UINT64, number, _SEQUENCE_KEY, _UINT64, sequence)


@attrs.frozen(kw_only=True)
class Deliver(Header):
    """The header of a run that the broker delivers.

    ``producer`` and ``number``: the id of the first message; ``sequence``: its number in its queue, which rises by
    ``step`` from message to message, while ``number`` rises by ``step`` times ``stride``.  ``base``: where the first
    message begins in the numbering of the table's offsets.  ``counts``: index and delivery count in turn, for messages
    that may have been delivered before.  ``arrival``: when the broker took them (its clock, ms), if that matters.
    ``origin``: the address and queue from which they were moved, and why.  ``size``: with FLAG_LARGE, bytes of the body
    of the run's one message, which is to be asked for.
    """

    frame_type: ClassVar[FrameType] = FrameType.DELIVER
    address: str = scalar((str,), size_max=TARGET_CHARACTERS_MAX)
    producer: bytes = scalar((bytes,), size=IDENTITY_BYTES)
    number: int = scalar((int,))
    sequence: int = scalar((int,))
    step: int = scalar((int,), default=1)
    stride: int = scalar((int,), default=1)
    base: int = scalar((int,), default=0)
    counts: tuple[int, ...] = list_of(int, item_min=0)
    arrival: int = scalar((int,), default=0)
    origin: tuple[str, ...] = list_of(str)
    size: int = scalar((int,), default=0)

    def encode(self) -> bytes:
        """Encode as ``Header.encode`` does; the usual header in one step, with numbers of a fixed width."""
        if self.counts or self.base or self.step != 1 or self.stride != 1 or self.arrival or self.origin or self.size:
            return super().encode()
        return deliver_header(self.address, self.producer, self.number, self.sequence)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """As every header's; the usual one, with nothing but the four keys that it must have, is checked at a glance.

        Raises:
            RemoteProtocolError: it does not fit the schema.
        """
        values = decode_map(data, limits.HEADER_BYTES_MAX)
        if tuple(values) == _DELIVER_KEYS:
            address, producer, number, sequence = values.values()
            if (
                type(address) is str
                and len(address) <= TARGET_CHARACTERS_MAX
                and type(producer) is bytes
                and len(producer) == IDENTITY_BYTES
                and type(number) is type(sequence) is int
                and 0 <= number <= COUNTER_MAX
                and 0 <= sequence <= COUNTER_MAX
            ):
                return cls(address=address, producer=producer, number=number, sequence=sequence)
        return super().decode(data)

    def delivery_counts(self, rows: int) -> dict[int, int]:
        """Return ``counts`` by index, for a run of ``rows`` messages; a missing index was never delivered before.

        Raises:
            RemoteProtocolError: ``counts`` are not indexes of the run, each followed by a count.
        """
        if not self.counts:
            return {}
        indexes, counts = self.counts[0::2], self.counts[1::2]
        if len(indexes) != len(counts) or len(set(indexes)) != len(indexes) or max(indexes) >= rows:
            raise violation(
                "bad_header", "DELIVER has delivery counts that are not different indexes, and counts, in turn"
            )
        return dict(zip(indexes, counts, strict=True))


SCHEMAS: Final[dict[FrameType, type[Header]]] = {
    schema.frame_type: schema
    for schema in (
        Hello, Welcome, Authenticate, Challenge, Proof, Authenticated, Attach, Attached, Probe, Probed, Close,
        Produce, Consume, Leave, Call, Answer, Refuse, ConsumerLost, Deliver, LinkOpening, Forward, Binding, Send, Read,
        Transact, NodeNews, BranchChange, AddressCredit, Replicate, Log, Logged,
    )
}  # fmt: skip


assert SCHEMAS.keys() == {frame_type for frame_type, form in FORMS.items() if form.has_header}, "one schema each"


def header_of(frame: Frame, schema: type[H]) -> H:
    """Decode the typed header of a frame."""
    invariant(frame.type is schema.frame_type, f"a {frame.type.name} frame is read as one")
    return schema.decode(frame.header)
