"""The msgpack headers of the frames of replication: a node asks for the log of another one, and follows it."""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from meshq import limits
from meshq.endpoint import PLACE_CHARACTERS_MAX
from meshq.ids import IDENTITY_BYTES
from meshq.wire._frames import FrameType
from meshq.wire._header_schema import Header, list_of, name_of_node, scalar, sentence

#: Of the proof that both nodes encrypt with the same key.
FINGERPRINT_BYTES: Final = 32


@attrs.frozen(kw_only=True)
class Replicate(Header):
    """Peer to server, instead of ATTACH: ask for the server's log, to follow it as its replica.

    ``node_id``: whose replica the peer wants to be; empty: anybody's.  ``instance``, ``node_name``, ``place``: the
    peer, and where it is reached.  ``group``: of its policy; empty: none.  ``primary``: it is configured as a primary.
    ``epoch``: the highest that it knows of that node id.  ``fingerprint``: of its encryption key; empty: it has none.
    ``asks``: it wants to know only whether the server acts, and in which epoch.  ``acts``: it acts itself in ``epoch``.
    ``ends``: and has given up the server as its replica, which takes over no more, if its life is the one that was
    ``given_up``.  ``ttl_ms``: after so long a silence the link is given up.  ``provider``: it asks a quorum provider
    before it acts, and so has to the server.  ``votes``: it asks for a vote about ``node_id`` and for no log: that
    ``node_name`` is the one that goes on, as the change of that ``number``.  ``vote``: of which attempt the vote is
    part; empty: it wants to know only who would vote.  ``compares``: it can compare its store with that of the server.
    ``host``: where the node is reached in whose process the peer is its backup; empty: it has a process of its own.
    """

    frame_type: ClassVar[FrameType] = FrameType.REPLICATE
    node_id: bytes = scalar((bytes,), default=b"", size_max=IDENTITY_BYTES)
    instance: bytes = scalar((bytes,), size=IDENTITY_BYTES)
    node_name: str = name_of_node()
    place: str = scalar((str,), default="", size_max=PLACE_CHARACTERS_MAX)
    group: str = scalar((str,), default="", size_max=limits.ADDRESS_BYTES_MAX)
    primary: bool = scalar((bool,), default=False)
    epoch: int = scalar((int,), default=0)
    fingerprint: bytes = scalar((bytes,), default=b"", size_max=FINGERPRINT_BYTES)
    asks: bool = scalar((bool,), default=False)
    acts: bool = scalar((bool,), default=False)
    ends: bool = scalar((bool,), default=False)
    given_up: bytes = scalar((bytes,), default=b"", size_max=IDENTITY_BYTES)
    ttl_ms: int = scalar((int,), default=60_000)
    provider: bool = scalar((bool,), default=False)
    votes: bool = scalar((bool,), default=False)
    number: int = scalar((int,), default=0)
    vote: bytes = scalar((bytes,), default=b"", size_max=IDENTITY_BYTES)
    compares: bool = scalar((bool,), default=False, key="~compares")
    host: str = scalar((str,), default="", size_max=PLACE_CHARACTERS_MAX, key="~host")


@attrs.frozen(kw_only=True)
class Log(Header):
    """Server to replica: the next piece of its log, by ``kind``; ``first`` of the frame is a position.

    ``accepted``, first of all: ``node_id``, ``journal_id``, ``name`` and ``place`` of the server, its ``epoch`` and
    ``activation``; with ``asks`` nothing follows.  ``batch``: ``rows`` records, in the body the rows (8 bytes each),
    then with ``table`` their positions (8 each), then their bytes, as in the journal; with ``segment`` it belongs to a
    segment of that number, which is ``compacted`` or not and begins at ``base``.  ``segment``: that segment is whole.
    ``copied``: the copy is whole, up to ``first``.  ``body``: bytes of the file ``name`` from ``first`` on, the
    ``last`` ones or not.
    ``removed``: that file is not needed any more.  ``joined``: from here on everything is waited for; the replica is in
    sync when it has told ``first``.  ``in_sync``: it is; ``members``: who is, ``number``: the change of the pair by
    which it is so, ``voters``: who votes about the next one.  ``voters``: these are others now, the ``first`` time or a
    later one.  ``stopped``: the server stops, and
    ``first`` is its last position.  ``yielded``: the same, where it hands over, for
    the reason ``name``.  ``dropped``, last: the replica is not
    waited for any more.  ``waiting``, first and last: the server does not act; ``epoch`` and ``activation`` as it
    remembers them, ``flags``: 1 it has acted in that epoch, 2 it was in sync then, 4 it is configured as a primary.
    ``vote``, first of all where a vote was asked for: ``instance``: who has voted, as long as it remembers its votes;
    ``flags``: 1 yes; ``number`` and ``name``: for which change it has voted last, and for whom.
    Both answers, ``accepted`` and ``waiting``, have the ``node_id`` of the server's store, the ``instance`` of its life
    and the ``group`` of its policy, as far as there are any.

    ``compare``, the question of a ``number``: the body has the positions (8 bytes each) and digests (16 each) of all
    records of the server that are live beyond ``first``, up to ``base``; the replica says which one differs first.

    ``more``: the body goes on in the next frame.
    """

    frame_type: ClassVar[FrameType] = FrameType.LOG
    kind: str = scalar((str,), size_max=16)
    node_id: bytes = scalar((bytes,), default=b"", size_max=IDENTITY_BYTES)
    instance: bytes = scalar((bytes,), default=b"", size_max=IDENTITY_BYTES)
    group: str = scalar((str,), default="", size_max=limits.ADDRESS_BYTES_MAX)
    journal_id: bytes = scalar((bytes,), default=b"", size_max=IDENTITY_BYTES)
    name: str = scalar((str,), default="", size_max=limits.ADDRESS_BYTES_MAX)
    place: str = scalar((str,), default="", size_max=PLACE_CHARACTERS_MAX)
    epoch: int = scalar((int,), default=0)
    activation: int = scalar((int,), default=0)
    segment: int = scalar((int,), default=0)
    base: int = scalar((int,), default=0)
    compacted: bool = scalar((bool,), default=False)
    rows: int = scalar((int,), default=0)
    flags: int = scalar((int,), default=0)
    table: bool = scalar((bool,), default=False)
    last: bool = scalar((bool,), default=False)
    members: tuple[str, ...] = list_of(str)
    number: int = scalar((int,), default=0)
    voters: tuple[str, ...] = list_of(str)
    more: bool = scalar((bool,), default=False)


@attrs.frozen(kw_only=True)
class Logged(Header):
    """Replica to server: ``first`` of the frame is the last position that is durable here.

    ``kind``: ``position``; ``working``: nothing more is durable, but work is done; ``joined``: a position, of a replica
    that has heard that it joins, and whose store has the counter of the server; ``voters``: the replica remembers the
    voters that were told the ``first`` time or a later one; ``compared``, to the question of that ``number``: the
    record at ``first`` is the first that differs (0: none does), and ``text`` the digest that it has here, as
    hexadecimal digits; with the ``reason`` ``failed`` the store can't be read, and ``text`` says why; ``withdraw``: the
    vote is not needed any more; ``failed``, last: ``reason`` says why in one word, and ``text`` in a sentence.
    """

    frame_type: ClassVar[FrameType] = FrameType.LOGGED
    kind: str = scalar((str,), default="position", size_max=16)
    number: int = scalar((int,), default=0)
    reason: str = scalar((str,), default="", size_max=16)
    text: str = sentence()
