"""The msgpack headers of the frames between nodes: links, forwarded runs, and news of queues and nodes."""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from meshq import limits
from meshq.endpoint import PLACE_CHARACTERS_MAX
from meshq.ids import IDENTITY_BYTES
from meshq.wire._frames import FrameType
from meshq.wire._header_schema import Header, list_of, name_of_node, scalar

#: ``address::queue``, both names of the largest size.
TARGET_CHARACTERS_MAX: Final = limits.ADDRESS_BYTES_MAX * 2 + 2


@attrs.frozen(kw_only=True)
class LinkOpening(Header):
    """Peer to server: open the frame's channel for runs that this node's store-and-forward queue holds for yours.

    ``link``: whose numbers these are; ``node_id``, ``instance``, ``node_name``: the node that speaks, and this life of
    it; ``connector``: where it may be reached.  ``cluster``: the name of its cluster connection, and ``version`` of
    its description, as in NODE; absent: the peer is older, and tells nobody who is in its cluster.  ``hops``: how many
    links away the queues may be that are described, those of other nodes of the same cluster among them.
    ``bounded``: the peer keeps to the credit of an address.
    """

    frame_type: ClassVar[FrameType] = FrameType.LINK
    link: bytes = scalar((bytes,), size=IDENTITY_BYTES)
    node_id: bytes = scalar((bytes,), size=IDENTITY_BYTES)
    instance: bytes = scalar((bytes,), size=IDENTITY_BYTES)
    node_name: str = name_of_node()
    connector: str = scalar((str,), default="", size_max=TARGET_CHARACTERS_MAX)
    cluster: str = scalar((str,), default="", size_max=limits.ADDRESS_BYTES_MAX, key="~cluster")
    version: int = scalar((int,), default=0, key="~version")
    backup: str = scalar((str,), default="", size_max=PLACE_CHARACTERS_MAX, key="~backup")
    hops: int = scalar((int,), default=1, key="~hops")
    bounded: bool = scalar((bool,), default=False, key="~bounded")


#: Of the counts of a run, and of its times: more than a run of the largest size has.
_FORMER_BYTES_MAX: Final = 16 * limits.RUN_MESSAGES_MAX


@attrs.frozen(kw_only=True)
class Forward(Header):
    """Peer to server: the run, and the numbers of the server's queues that the run is for.

    ``producer`` and ``number``: the id of the first message, kept for life.  The link's own numbers rise by ``step``
    from message to message, and ``number`` by ``step`` times ``stride``.  ``more``: the next run on the channel is the
    same one, and names more queues; it is stored when all have been named.  ``topic``: the address is multicast,
    so that no queue of another kind is made for it; absent: the peer is older, or doesn't know.  ``arrival``:
    when the first broker took them (its clock, ms), if that matters; ``waited``: how long that was ago when the frame
    was made, ms, independent of clocks; absent: the peer is older, and the delay begins anew.  ``origin``: address,
    queue and reason of messages that were moved before; only for a node that has named the feature ``origin``.

    ``counts``: for each row with a count 2 bytes of row, 2 of deliveries, 2 of certain returns, little endian, rows
    rising (feature ``counts``); ``due``: for each delayed row 2 bytes of row, 8 of ms that are left when the frame is
    made (feature ``due``); ``queue``: in place of ``queues``, for one queue that is made if it is missing: its name,
    routing type, filter and kind of subscription, and of "durable" and "on_use" what holds (feature ``queue``).

    ``upload``: the channel of a whole large body, which is the one message's (feature ``large``); 0: bodies are with
    the run.

    ``entry``: what the one row is if it is no message, by the name of the feature that it needs; ``queue`` then names
    the address, and there are no ``queues``, without which an older node refuses the frame.  ``ids``: duplicate ids of
    the address.  The body has, little endian, 4 bytes of how many newer ids the peer has, 2 of how many these are, a
    byte of length for each, and the ids, oldest first.

    ``held``: the id of a prepared transaction of a node that leaves (feature ``prepared``); without ``entry`` it has
    acknowledged the rows, and with ``entry`` the frame, which has no ``queue`` then, is a part of the transaction:
    ``prepared`` begins it, ``prepared_sends`` are messages that it sends to ``address``, or to the queue ``target`` of
    the address, and ``prepared_end`` ends it.  The one row of the first and the last has as its body 8 bytes of when it
    was prepared, ms, little endian, and the name of its user.

    ``branch``: the run goes over the branch of its address, which was begun before (feature ``branches``).
    ``credit``: the number of the credit that counts its messages; 0: none does.
    """

    frame_type: ClassVar[FrameType] = FrameType.FORWARD
    address: str = scalar((str,), size_max=TARGET_CHARACTERS_MAX)
    producer: bytes = scalar((bytes,), size=IDENTITY_BYTES)
    number: int = scalar((int,))
    step: int = scalar((int,), default=1)
    stride: int = scalar((int,), default=1)
    queues: tuple[int, ...] = list_of(int, item_min=1)
    more: bool = scalar((bool,), default=False)
    arrival: int = scalar((int,), default=0)
    waited: int = scalar((int,), default=0, key="~waited")
    topic: bool = scalar((bool,), default=False, key="~topic")
    origin: tuple[str, ...] = list_of(str, key="~origin")
    counts: bytes = scalar((bytes,), default=b"", size_max=_FORMER_BYTES_MAX, key="~counts")
    due: bytes = scalar((bytes,), default=b"", size_max=_FORMER_BYTES_MAX, key="~due")
    queue: tuple[str, ...] = list_of(str, key="~queue")
    entry: str = scalar((str,), default="", size_max=16, key="~entry")
    held: bytes = scalar((bytes,), default=b"", size_max=limits.XID_BYTES_MAX, key="~held")
    target: str = scalar((str,), default="", size_max=TARGET_CHARACTERS_MAX, key="~target")
    upload: int = scalar((int,), default=0, key="~upload")
    branch: bool = scalar((bool,), default=False, key="~branch")
    credit: int = scalar((int,), default=0, key="~credit")


@attrs.frozen(kw_only=True)
class BranchChange(Header):
    """Peer to server: from here on the messages of an address go over a branch of the link, or no longer do.

    A branch has a mark of its own, so that messages of other addresses may overtake those of the branch.
    ``ended``: everything that was sent over the branch is stored, and the address goes with the others again.

    Server to peer, before the answer to LINK: a branch that the link has, and in ``first`` up to which number its
    messages are stored.
    """

    frame_type: ClassVar[FrameType] = FrameType.BRANCH
    address: str = scalar((str,), size_max=TARGET_CHARACTERS_MAX)
    ended: bool = scalar((bool,), default=False)


@attrs.frozen(kw_only=True)
class AddressCredit(Header):
    """Server to peer: how many messages of an address the peer may send on the channel, in this session and in all.

    That is ``first``.  ``number``: of the credit, which the peer names with each run that it counts; 0: the address is
    not bounded any more, as one of which nothing is said.  Messages that a prepared transaction has acknowledged, and
    what is no message, are not counted.

    Less than before with the same number asks for credit that was not used.  Peer to server, the answer to that: in
    ``first`` how many messages the peer sends in all, which is as many as are granted, or as it has sent.
    """

    frame_type: ClassVar[FrameType] = FrameType.ADDRESS_CREDIT
    address: str = scalar((str,), size_max=TARGET_CHARACTERS_MAX)
    number: int = scalar((int,), default=0)


@attrs.frozen(kw_only=True)
class Binding(Header):
    """Server to peer: one of its queues as it is now; ``gone``: it is no more.

    ``filter``: what it takes at all.  ``filters``: what its consumers want, if each wants something in particular.
    ``durable``: it outlives its node; who doesn't say so is older, and may.
    ``precise``: ``filters`` has all that its consumers want; otherwise that is more than a header holds.
    ``path``: of a queue of another node, the ids of the nodes from there to the one before the server; ``node_name``:
    of that other node; ``state``: how that node, or one on the way, is gone; ``features``: what all nodes understand
    from the one after the server to that node.  Only for a peer that has asked for more than one hop.
    """

    frame_type: ClassVar[FrameType] = FrameType.BINDING
    queue: int = scalar((int,))
    name: str = scalar((str,), default="", size_max=TARGET_CHARACTERS_MAX)
    address: str = scalar((str,), default="", size_max=TARGET_CHARACTERS_MAX)
    routing: str = scalar((str,), default="anycast", size_max=16)
    consumers: int = scalar((int,), default=0)
    filters: tuple[str, ...] = list_of(str)
    filter: str = scalar((str,), default="", size_max=limits.FILTER_BYTES_MAX)
    gone: bool = scalar((bool,), default=False)
    durable: bool = scalar((bool,), default=True, key="~durable")
    precise: bool = scalar((bool,), default=True, key="~precise")
    path: tuple[str, ...] = list_of(str, key="~path")
    node_name: str = scalar((str,), default="", size_max=limits.NODE_NAME_CHARACTERS_MAX, key="~node_name")
    state: str = scalar((str,), default="", size_max=16, key="~state")
    features: str = scalar((str,), default="", size_max=1_024, key="~features")


@attrs.frozen(kw_only=True)
class NodeNews(Header):
    """Server to client, or to a peer on its link's channel: a node of its cluster as it is now.

    Only for a side that has named the feature ``topology``.  ``first`` is 0 while more such frames follow, and then the
    number of nodes that are known: only then the frames since the last such number apply, together.
    ``node_id``, ``instance``, ``version``, ``node_name``, ``primary``, ``backup``, ``leaving``, ``successor``,
    ``group``: as the node describes itself; only the node itself raises its ``version``.  ``leaving``: it hands over
    all that it has, of which ``successor`` has all from when it is named.  ``distance``: 0 for the server itself, 1 for
    a node that is linked with it, more for others, of which ``witness`` is linked with the node.  ``gone``: it is not
    in the cluster any more.  ``target``: the node to which it hands over now.
    ``connector``: the name that its connector has there.

    Peer to server, on its link's channel: an announcement of the peer by itself, with ``first`` 1.  Only for a server
    that has named the feature ``announced``.
    """

    frame_type: ClassVar[FrameType] = FrameType.NODE
    node_id: bytes = scalar((bytes,), size=IDENTITY_BYTES)
    instance: bytes = scalar((bytes,), default=b"", size_max=IDENTITY_BYTES)
    version: int = scalar((int,), default=0)
    node_name: str = scalar((str,), default="", size_max=limits.NODE_NAME_CHARACTERS_MAX)
    primary: str = scalar((str,), default="", size_max=PLACE_CHARACTERS_MAX)
    backup: str = scalar((str,), default="", size_max=PLACE_CHARACTERS_MAX)
    distance: int = scalar((int,), default=0)
    witness: bytes = scalar((bytes,), default=b"", size_max=IDENTITY_BYTES)
    gone: bool = scalar((bool,), default=False)
    leaving: bool = scalar((bool,), default=False)
    successor: bytes = scalar((bytes,), default=b"", size_max=IDENTITY_BYTES)
    group: str = scalar((str,), default="", size_max=limits.NODE_NAME_CHARACTERS_MAX)
    target: bytes = scalar((bytes,), default=b"", size_max=IDENTITY_BYTES, key="~target")
    connector: str = scalar((str,), default="", key="~connector")
