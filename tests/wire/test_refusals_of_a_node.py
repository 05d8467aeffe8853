"""Every refusal of the registry is met: what frames alone don't bring about takes a certain state of the node."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import attrs
import pytest
import trio

from meshq import Broker, limits
from meshq.abc import (
    Admission,
    AdmissionDecision,
    HandshakeFacts,
    NodeDescription,
    Redirect,
    ToldNode,
    TopologyMember,
)
from meshq.broker import Credentials, SessionRegistry
from meshq.broker.access._access import Rights
from meshq.broker.connection._stream_connection import HANDSHAKE_S
from meshq.endpoint import Endpoint
from meshq.env import real_env
from meshq.errors import AddressFullError, JournalBrokenError
from meshq.settings import Secret, Security
from meshq.testing import InlineThreads, MemoryNetwork, SimDisk
from meshq.wire import (
    BY_NAME,
    BY_NUMBER,
    FLAG_DURABLE,
    FLAG_LARGE,
    FLAG_RESENT,
    FLAG_TRANSACTED,
    Attach,
    Attached,
    Authenticate,
    Call,
    Close,
    Consume,
    Envelope,
    FrameType,
    Hello,
    LinkOpening,
    Produce,
    Proof,
    ReceiveBuffer,
    Transact,
    encode,
    encode_ranges,
    encode_run,
    header_of,
)
from tests.broker.kit import nothing
from tests.wire._frames_strategy import Plan, Step
from tests.wire._node_peer import MemoryNode, NodePeer
from tests.wire.cursor_scenes import CURSOR_SCENES, attached, said
from tests.wire.stage_scenes import batch_placing
from tests.wire.test_wrong_frames import BY_FRAMES

PRODUCER = bytes(range(16))
#: What the tasks of a node say, not what its frames bring about: tested below.
BY_TASKS = {"silent", "stopping", "journal_broken", "crowded"}
#: What a disk says of large bodies: tested in ``tests/broker/test_large_bodies.py``.
BY_DISKS = {"unreadable"}


def produced(node: MemoryNode) -> NodePeer:
    peer = attached(node)
    peer.say(said(FrameType.PRODUCE, Produce(producer=PRODUCER, address="a"), channel=1, number=1, first=1))
    return peer


def sent(number: int, first: int, size: int, **fields: object) -> Step:
    run = encode_run([bytes(size)])
    frame = {"channel": 1, "number": number, "first": first, "count": 1, "table": run.table, "body": run.body}
    return said(FrameType.SEND, **{**frame, **fields})


def no_credit() -> NodePeer:
    peer = produced(MemoryNode(memory_limit_bytes=100 * limits.KIB))
    # How much is granted is the node's own affair; that it ends is not.
    for number in range(1, 10):
        if peer.refusal is None:
            peer.say(sent(number + 1, number, 70 * limits.KIB))
    return peer


def bad_tag() -> NodePeer:
    peer = attached(MemoryNode())
    peer.say(
        said(FrameType.CONSUME, Consume(queue="a", window=1, window_bytes=1), channel=1, number=1, first=1),
        said(FrameType.SETTLE, channel=1, number=2, count=1, table=encode_ranges([(1, 1)])),
    )
    return peer


def role_not_served() -> NodePeer:
    peer = MemoryNode().connect()
    peer.say(said(FrameType.HELLO, Hello(oldest=1, newest=1, role="spy")))
    return peer


def linked(instance: bytes) -> NodePeer:
    """A node that says that it is this one, in this life of it or another; in process, where it needs no proof."""
    peer = MemoryNode().connect()
    peer._link.lossless = True
    peer.say(said(FrameType.HELLO, Hello(oldest=1, newest=1, role="peer")), *Plan((), closes=False).render()[1:])
    opening = LinkOpening(link=bytes(16), node_id=bytes(16), instance=instance, node_name="twin")
    peer.say(said(FrameType.LINK, opening, channel=1, first=1, number=1))
    return peer


def same_node() -> NodePeer:
    return linked(bytes(16))


def duplicate_node() -> NodePeer:
    return linked(b"another instance")


def unknown_mechanism() -> NodePeer:
    peer = MemoryNode().connect(trusted=False)
    peer.say(*Plan((), closes=False).render()[:2])
    return peer


def not_authenticated() -> NodePeer:
    credentials = Credentials.derive({"client": {"app": Secret("right")}}, b"secret")
    peer = MemoryNode().connect(trusted=False, credentials=credentials)
    begun = Authenticate(mechanism="scram-sha-256", user="app", nonce=bytes(32))
    peer.say(Plan((), closes=False).render()[0], said(FrameType.AUTHENTICATE, begun))
    peer.say(said(FrameType.PROOF, Proof(proof=bytes(32))))
    return peer


def session_taken() -> NodePeer:
    node = MemoryNode()
    first, second = attached(node), node.connect()
    mine = header_of(first.heard_of(FrameType.ATTACHED)[0], Attached)
    hello, authenticate, _ = Plan((), closes=False).render()
    second.say(hello, authenticate, said(FrameType.ATTACH, Attach(session=mine.session, key=mine.key)))
    first.feed(b"")
    assert header_of(second.heard_of(FrameType.ATTACHED)[0], Attached).resumed
    return first


def not_active() -> NodePeer:
    node = MemoryNode()
    node.core.closing.begin("it is stopping")
    return attached(node)


def unknown_producer() -> NodePeer:
    node = MemoryNode()
    node.core.ingress.producers.restore_forgotten()
    peer = produced(node)
    peer.say(sent(2, 5, 1, flags=FLAG_RESENT | FLAG_DURABLE))
    return peer


def body_missing() -> NodePeer:
    peer = produced(MemoryNode())
    peer.say(sent(2, 5, 0, flags=FLAG_RESENT | FLAG_DURABLE | FLAG_LARGE))
    return peer


def called(operation: str, *arguments: object) -> Callable[[], NodePeer]:
    def call() -> NodePeer:
        peer = produced(MemoryNode())
        peer.say(said(FrameType.CALL, Call(operation=operation, arguments=arguments), number=2, first=2))
        return peer

    return call


def too_many() -> NodePeer:
    peer = attached(MemoryNode())
    for number in range(1, limits.CHANNELS_MAX + 2):
        header = Produce(producer=number.to_bytes(16, "big"), address="a")
        peer.say(said(FrameType.PRODUCE, header, channel=number, number=number, first=number))
    return peer


def too_many_sessions() -> NodePeer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "SESSIONS_MAX", 2)
        node = MemoryNode()
        attached(node)
        attached(node)
        return attached(node)


def queue_deleted() -> NodePeer:
    node = MemoryNode()
    peer, other = attached(node), attached(node)
    peer.say(said(FrameType.CONSUME, Consume(queue="a", window=1, window_bytes=1), channel=1, number=1, first=1))
    other.say(said(FrameType.CALL, Call(operation="delete_queue", arguments=("name", "a")), number=1, first=1))
    peer.feed(b"")
    return peer


def stale_delivery() -> NodePeer:
    peer = queue_deleted()
    peer.heard.clear()
    peer.say(said(FrameType.SETTLE, channel=1, number=2, first=9, count=1, table=encode_ranges([(1, 1)])))
    return peer


def bad_filter() -> NodePeer:
    peer = attached(MemoryNode())
    header = Consume(queue="a", window=1, window_bytes=1, filter="a = = 1")
    peer.say(said(FrameType.CONSUME, header, channel=1, number=1, first=1))
    return peer


def not_owner() -> NodePeer:
    node = MemoryNode()
    owner, peer = attached(node), attached(node)
    owner.say(said(FrameType.CALL, Call(operation="create_temporary_queue"), number=1, first=1))
    (name,) = node.core.router.queues
    peer.say(said(FrameType.CONSUME, Consume(queue=name, window=1, window_bytes=1), channel=1, number=1, first=1))
    return peer


def in_use() -> NodePeer:
    node = MemoryNode()
    for _ in range(2):
        peer = attached(node)
        header = Consume(queue="a", window=1, window_bytes=1, subscription="single", name="s")
        peer.say(said(FrameType.CONSUME, header, channel=1, number=1, first=1))
    return peer


class FullLog:
    """A journal whose disk is full."""

    durable = last = 0
    journal_id = bytes(16)

    def append_nowait(self, kind: int, parts: object, **options: object) -> int:
        raise AddressFullError("the disk has no room for new messages")

    def hurry(self) -> None:
        """Nothing waits."""


def address_full() -> NodePeer:
    node = MemoryNode()
    node.core.release_queue.log = FullLog()
    peer = attached(node)
    peer.say(said(FrameType.PRODUCE, Produce(producer=PRODUCER, address="a"), channel=1, number=1, first=1))
    return peer


def forbidden() -> NodePeer:
    node = MemoryNode()
    peer = attached(node)
    (session,) = node.sessions.by_number.values()
    session.principal.rights = Rights(node.core.access, "app", frozenset(), {})
    peer.say(said(FrameType.CALL, Call(operation="purge_queue", arguments=("name", "a")), number=1, first=1))
    return peer


def duplicate() -> NodePeer:
    node = MemoryNode()
    peer = attached(node)
    run = encode_run([b"1", b"2"], [Envelope(1 | 4 << 8, b"d", b"", b"")] * 2)
    header = Transact(transaction=1, address="a", producer=PRODUCER, number=1, sent=0)
    peer.say(
        said(FrameType.TRANSACT, header, number=1, first=1, count=run.rows, table=run.table, body=run.body),
        said(
            FrameType.CALL,
            Call(operation="commit", arguments=("transaction", 1, "sent", 2, "acked", 0)),
            number=2,
            first=2,
        ),
    )
    return peer


def prepared(peer: NodePeer, number: int, sent: int, acked: int) -> None:
    arguments = ("transaction", 1, "sent", sent, "acked", acked, "xid", b"x")
    call = Call(operation="prepare", arguments=arguments)
    peer.say(said(FrameType.CALL, call, number=number, first=number))


def retry_transaction() -> NodePeer:
    node = MemoryNode()
    peer = attached(node)
    run = encode_run([b"1"])
    header = Transact(transaction=1, address="a", producer=PRODUCER, number=1, sent=0)
    peer.say(said(FrameType.TRANSACT, header, number=1, first=1, count=1, table=run.table, body=run.body))
    prepared(peer, 2, 1, 0)
    node.core.definitions.settings.set("a", {"full_policy": "fail"})
    node.core.memory.used_bytes = node.core.memory.limit_bytes
    call = Call(operation="commit_prepared", arguments=("xid", b"x"))
    peer.say(said(FrameType.CALL, call, number=3, first=3))
    return peer


def undecided() -> NodePeer:
    peer = attached(MemoryNode())
    run = encode_run([b"1"])
    peer.say(
        said(FrameType.CONSUME, Consume(queue="a", window=1, window_bytes=1), channel=1, number=1, first=1),
        said(FrameType.PRODUCE, Produce(producer=PRODUCER, address="a"), channel=2, number=2, first=2),
        said(FrameType.SEND, channel=2, number=3, first=1, count=1, table=run.table, body=run.body),
        said(
            FrameType.SETTLE,
            flags=FLAG_TRANSACTED,
            stamp=1,
            channel=1,
            number=4,
            count=1,
            table=encode_ranges([(1, 1)]),
        ),
    )
    prepared(peer, 5, 0, 1)
    call = Call(operation="delete_queue", arguments=("name", "a"))
    peer.say(said(FrameType.CALL, call, number=6, first=6))
    return peer


class ElsewhereAdmission(Admission):
    """Sends every client to another node."""

    def decide(self, facts: HandshakeFacts) -> AdmissionDecision:
        return Redirect("tcp://elsewhere:1")


def use_another_server() -> NodePeer:
    node = MemoryNode()
    node.sessions = SessionRegistry(node.core, lambda: node.now, 60.0, detached=nothing, admission=ElsewhereAdmission())
    return attached(node)


class UnfinishedHandover(TopologyMember):
    """A cluster in which no handover comes to its end."""

    def told_to(self, asker: bytes) -> list[ToldNode]:
        return []

    def linked(self, session: int, node: NodeDescription) -> None:
        pass

    def unlinked(self, session: int) -> None:
        pass

    def missing(self, node_id: bytes, instance: bytes) -> str:
        return f"{node_id.hex()} hands over"


def not_handed_over() -> NodePeer:
    node = MemoryNode()
    node.core.settings.topologies.add("mesh", UnfinishedHandover())
    hello, authenticate, _ = Plan((), closes=False).render()
    peer = node.connect()
    peer.say(hello, authenticate, said(FrameType.ATTACH, Attach(came_from=bytes(32))))
    return peer


SCENES: dict[str, Callable[[], NodePeer]] = {
    "retry_transaction": retry_transaction,
    "undecided": undecided,
    "stale_delivery": stale_delivery,
    "address_full": address_full,
    "no_credit": no_credit,
    "bad_tag": bad_tag,
    "role_not_served": role_not_served,
    "same_node": same_node,
    "duplicate_node": duplicate_node,
    "unknown_mechanism": unknown_mechanism,
    "not_authenticated": not_authenticated,
    "session_taken": session_taken,
    "not_active": not_active,
    "unknown_producer": unknown_producer,
    "body_missing": body_missing,
    "not_found": called("purge_queue", "name", "none"),
    "usage": called("create_address", "name", "a", "routing", "multicast"),
    "unknown_operation": called("no_such_operation"),
    "too_many": too_many,
    "too_many_sessions": too_many_sessions,
    "queue_deleted": queue_deleted,
    "bad_filter": bad_filter,
    "not_owner": not_owner,
    "duplicate": duplicate,
    "rolled_back": called("commit", "transaction", 1, "sent", 1, "acked", 0),
    "in_use": in_use,
    **CURSOR_SCENES,
    "batch_placing": batch_placing,
    "no_successor": called("fail_over"),
    "backup_needed": called("end_backup", "name", "colocated_backup_1"),
    "forbidden": forbidden,
    "use_another_server": use_another_server,
    "not_handed_over": not_handed_over,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_a_node_refuses_by_the_right_entry(name: str) -> None:
    assert SCENES[name]().refusals == [name]


def test_every_refusal_of_the_registry_is_met() -> None:
    parts = [BY_FRAMES, set(SCENES), BY_TASKS, BY_DISKS]
    assert set.union(*map(set, parts)) == set(BY_NAME)
    assert sum(map(len, parts)) == len(BY_NAME)


class World:
    """A network, and a node's environment in it."""

    def __init__(self) -> None:
        self.network = MemoryNetwork(random.Random(1))
        self.disk = SimDisk()
        self.env = attrs.evolve(
            real_env(), network=self.network.host("node"), disk=self.disk.mount(), threads=InlineThreads()
        )
        self.heard: list[str] = []

    async def client(self, url: str, *steps: Step) -> None:
        """Say this to the node, and hear why it closes the connection."""
        stream = await self.network.host("node").connect("127.0.0.1", Endpoint.parse(url).port)
        for step in steps:
            stream.send_nowait(encode(step.frame))
            await trio.sleep(1)
        buffer = ReceiveBuffer(limits.BODY_BYTES_MAX)
        while data := await stream.receive(limits.RECEIVE_BYTES):
            closes = [frame for frame in buffer.feed(data) if frame.type is FrameType.CLOSE]
            self.heard += [BY_NUMBER[header_of(frame, Close).code].name for frame in closes]
        stream.close()


async def test_who_says_nothing_is_silent_and_who_is_there_at_the_end_hears_of_it() -> None:
    world = World()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.network.run)
        async with (
            trio.open_nursery() as clients,
            Broker("node", data_dir=None, acceptors=["tcp://127.0.0.1:0"], env=world.env) as broker,
        ):
            clients.start_soon(world.client, broker.urls[0])
            await trio.sleep(HANDSHAKE_S + 1)
            assert world.heard == ["silent"]
            clients.start_soon(world.client, broker.urls[0], *Plan((), closes=False).render())
            await trio.sleep(3.5)
        nursery.cancel_scope.cancel()
    assert world.heard == ["silent", "stopping"]


@pytest.mark.slow
async def test_an_address_from_which_too_many_come_unknown_hears_so() -> None:
    world = World()
    security = Security(users={"app": "x"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.network.run)
        async with (
            trio.open_nursery() as clients,
            Broker("node", data_dir=None, acceptors=["tcp://127.0.0.1:0"], env=world.env, security=security) as broker,
        ):
            for _ in range(limits.UNAUTHENTICATED_PER_ADDRESS_MAX):
                clients.start_soon(world.client, broker.urls[0])
            await trio.sleep(1)
            assert world.heard == []
            clients.start_soon(world.client, broker.urls[0])
            await trio.sleep(1)
            assert world.heard == ["crowded"]
            assert broker.statistics().connections_turned_away == 1
            await trio.sleep(HANDSHAKE_S)
        nursery.cancel_scope.cancel()
    assert world.heard == ["crowded"] + ["silent"] * limits.UNAUTHENTICATED_PER_ADDRESS_MAX


async def test_a_client_hears_that_the_disk_has_failed() -> None:
    world = World()
    produce = said(FrameType.PRODUCE, Produce(producer=PRODUCER, address="a"), channel=1, number=1, first=1)
    steps = (*Plan((), closes=False).render(), produce, sent(2, 1, 10, flags=FLAG_DURABLE))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.network.run)
        async with trio.open_nursery() as clients:
            with pytest.raises(JournalBrokenError):
                async with Broker("node", data_dir="/data", acceptors=["tcp://127.0.0.1:0"], env=world.env) as broker:
                    clients.start_soon(world.client, broker.urls[0], *steps)
                    # Between the client's last frame but one and its last one.
                    await trio.sleep(3.5)
                    world.disk.faults.inject("sync", errno.EIO)
                    await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert world.heard == ["journal_broken"]
