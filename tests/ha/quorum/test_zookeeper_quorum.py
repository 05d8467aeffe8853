"""The provider for ZooKeeper, as far as no server is needed: its settings, and how its lock is fenced."""

from __future__ import annotations

import random
import ssl
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import pytest

from meshq import (
    TLS,
    ConnectionBrokenError,
    RefusedError,
    RemoteProtocolError,
    SecurityError,
    SettingsError,
    UsageError,
    ZooKeeperQuorum,
)
from meshq.abc import QuorumRecord
from meshq.ha.quorum.zookeeper import _lock_node_machine as zk
from meshq.ha.quorum.zookeeper._record_format import decode_record, encode_record

T = TypeVar("T")
PATH = "/meshq/test/id"
EXAMPLE = "127.0.0.1:6666,127.0.0.1:6667,127.0.0.1:6668"


def test_its_defaults_are_those_of_the_documentation() -> None:
    """F45, F46."""
    quorum = ZooKeeperQuorum(EXAMPLE)
    assert (quorum.hosts, quorum.session_s, quorum.session_percent) == (EXAMPLE, 18.0, 33)
    assert (quorum.connection_timeout, quorum.retries, quorum.retry_interval) == (8.0, 1, 1.0)
    assert (quorum.namespace, quorum.auth, quorum.tls, quorum.insecure) == (None, None, None, False)
    with pytest.raises(TypeError, match="hosts"):
        ZooKeeperQuorum()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        *(({"hosts": hosts}, "hosts") for hosts in ("", "a", "a:0", "a:x", "a:1,", "a:1,a:1", "a:1/b", "a:1, b:1", 1)),
        ({"session": 0.0}, "session"),
        ({"session_percent": 0}, "session_percent"),
        ({"session_percent": 34}, "session_percent"),
        ({"connection_timeout": 0}, "connection_timeout"),
        ({"retries": -1}, "retries"),
        ({"retry_interval": 0}, "retry_interval"),
        *(({"namespace": name}, "namespace") for name in ("", "a/b", "..", ".", 1, "a\n")),
        *(({"auth": auth}, "auth") for auth in ("me", ("me",), ("a:b", "c"), ("", "c"))),
        ({"auth": ("me", "")}, "password"),
        ({"tls": True}, "tls"),
        ({"tls": ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)}, "tls"),
        ({"insecure": 1}, "insecure"),
        *(({"hosts": f"127.0.0.1:1,{host}:2"}, "hosts") for host in ("a", "192.0.2.1", "[2001:db8::1]", "127.evil")),
    ],
)
def test_a_setting_out_of_bounds_is_refused_by_its_name(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        ZooKeeperQuorum(**{"hosts": EXAMPLE} | settings)
    assert caught.value.setting == name


def test_plaintext_beyond_this_machine_and_a_context_that_believes_everybody_need_a_word() -> None:
    far, blind = "a:1,[2001:db8::1]:2", ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ZooKeeperQuorum("localhost:1,[::1]:2,127.0.0.9:3")
    ZooKeeperQuorum(far, insecure=True)
    for tls in (TLS(), ssl.create_default_context()):
        assert ZooKeeperQuorum(far, tls=tls).tls is tls
    blind.check_hostname = False
    with pytest.raises(SettingsError, match="check_hostname, or insecure=True"):
        ZooKeeperQuorum(far, tls=blind)
    assert ZooKeeperQuorum(far, tls=blind, insecure=True).tls is blind


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(ZooKeeperQuorum("[::1]:2181", auth=("me", "secret")))


def test_without_kazoo_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    with pytest.raises(UsageError, match=r"pip install 'meshq\[zookeeper\]'"):
        ZooKeeperQuorum(EXAMPLE)


@pytest.mark.parametrize(
    "data",
    [b"no json", b"[]", b"{}", b'{"version": 2}', b'{"version":1,"epoch":-1,"sequence":0,"claimed":0,"in_sync":[],'
     b'"holder":""}', b'{"version":1,"epoch":1,"sequence":0,"claimed":0,"in_sync":[1],"holder":""}'],
)  # fmt: skip
def test_what_is_no_record_is_told_with_its_place(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="/place in ZooKeeper is no record"):
        decode_record(data, "/place")


def test_a_record_is_read_as_it_was_written() -> None:
    record = QuorumRecord(epoch=2**40, sequence=3, claimed=4, in_sync=("nord", "süd 2"), holder="nord")
    for one in (record, QuorumRecord()):
        assert decode_record(encode_record(one), "/place") == one


async def test_without_a_server_a_session_begins_and_ends_and_calls_say_which_servers_were_tried() -> None:
    quorum = ZooKeeperQuorum("127.0.0.1:1", connection_timeout=0.05, retries=0)
    async with quorum.session(b"i" * 16, b"a" * 16) as session:
        for call in (session.read, session.acquire):
            with pytest.raises(ConnectionBrokenError, match=r"no ZooKeeper server of 127\.0\.0\.1:1") as caught:
                await call()
            assert caught.value.outcome == "not_done"
        assert session.held_until == 0.0
        await session.release()
        with pytest.raises(RefusedError, match="not held"):
            await session.compare_and_set(QuorumRecord(), QuorumRecord(epoch=1))
    for ids in ((b"short", b"a" * 16), (b"i" * 16, b"")):
        with pytest.raises(SettingsError, match="16 bytes"):
            quorum.session(*ids)


@attrs.define
class Node:
    data: bytes
    version: int = 0
    owner: int = 0
    shared: bool = False


class Tree:
    """What an ensemble keeps: its nodes, each with its version, and the session of each that is ephemeral."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        #: The nodes that everybody may change.
        self.open: set[str] = set()
        #: Who has changed the record, by the data of the lock node at that moment.
        self.changed_by: list[bytes] = []

    def answer(self, session: int, request: zk.Request) -> zk.Answer:
        match request:
            case zk.Read(path):
                node = self.nodes.get(path)
                return node and zk.Found(node.data, node.version, node.owner == session)
            case zk.Make(path, shared):
                self.nodes.setdefault(path, Node(b"", shared=shared))
            case zk.Look(path):
                return path not in self.open
            case zk.Write(parts):
                kept = {path: attrs.evolve(node) for path, node in self.nodes.items()}
                if not all(self._done(session, part) for part in parts):
                    self.nodes = kept
                    return False
                if PATH in kept and kept[PATH].data != self.nodes[PATH].data:
                    self.changed_by.append(self.nodes[f"{PATH}/lock"].data)
                return True
        return None

    def _done(self, session: int, part: Any) -> bool:
        node = self.nodes.get(part.path)
        match part:
            case zk.Create(path, data):
                self.nodes[path] = Node(data, owner=session)
                return node is None
            case zk.Delete(path):
                self.nodes.pop(path, None)
                return node is not None
        if node is None or part.version not in (zk.ANY, node.version):
            return False
        if isinstance(part, zk.Put):
            node.data, node.version = part.data, node.version + 1
        return True

    def expire(self, session: int) -> None:
        self.nodes = {path: node for path, node in self.nodes.items() if node.owner != session}

    def run(self, session: int, steps: zk.Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                request = steps.send(self.answer(session, request))
        except StopIteration as end:
            value: T = end.value
            return value

    def late(self, session: int, steps: zk.Steps[Any]) -> Callable[[], zk.Answer]:
        """Carry the steps out, but for their write: that is under way, and arrives when it is called."""
        request = next(steps)
        while not isinstance(request, zk.Write):
            request = steps.send(self.answer(session, request))
        sent = request
        return lambda: self.answer(session, sent)


def node(name: bytes) -> zk.LockNode:
    return zk.LockNode(PATH, name * 16)


ZERO, ONE, TWO = QuorumRecord(), QuorumRecord(epoch=1), QuorumRecord(epoch=2)


@pytest.mark.parametrize("next_holder", [None, b"b"])
def test_a_record_that_arrives_when_the_lock_has_gone_is_not_kept(next_holder: bytes | None) -> None:
    tree, first = Tree(), node(b"a")
    assert tree.run(1, first.acquire())
    write = tree.late(1, first.compare_and_set(ZERO, ONE))
    tree.expire(1)
    if next_holder:
        assert tree.run(2, node(next_holder).acquire())
    assert write() is False
    assert tree.run(2, node(b"c").read()) == ZERO
    with pytest.raises(RefusedError, match="is gone"):
        tree.run(1, first.compare_and_set(ZERO, ONE))


def test_a_record_is_not_kept_in_the_next_time_of_the_same_session() -> None:
    tree, first = Tree(), node(b"a")
    assert tree.run(1, first.acquire())
    write = tree.late(1, first.compare_and_set(ZERO, ONE))
    assert tree.run(1, first.acquire())
    assert write() is False
    assert tree.run(1, first.compare_and_set(ZERO, TWO)) and tree.run(1, first.read()) == TWO


@pytest.mark.parametrize("holder", [1, 2])
def test_a_release_that_arrives_late_ends_no_later_lock(holder: int) -> None:
    tree, first, second = Tree(), node(b"a"), node(b"b")
    assert tree.run(1, first.acquire())
    release = tree.late(1, first.release())
    if holder == 2:
        tree.expire(1)
    assert tree.run(holder, (first if holder == 1 else second).acquire())
    assert release() is False
    assert not tree.run(3, node(b"c").acquire())


def test_a_lock_whose_answer_has_not_come_is_given_back_or_replaced() -> None:
    tree, first = Tree(), node(b"a")
    take = tree.late(1, first.acquire())
    assert take() is True and first.claimed
    assert tree.run(1, first.acquire()) and tree.run(1, first.compare_and_set(ZERO, ONE))
    # And one that arrives when another session has had the lock is none.
    take = tree.late(3, node(b"c").acquire()) if not tree.run(1, first.release()) else None
    assert take is not None
    second = node(b"b")
    assert tree.run(2, second.acquire()) and not tree.run(2, second.release())
    assert take() is False
    assert tree.run(2, second.acquire()) and tree.run(2, second.read()) == ONE


def test_a_lock_whose_answer_was_lost_is_given_back_although_a_later_try_is_refused() -> None:
    tree, first = Tree(), node(b"a")
    assert tree.late(1, first.acquire())() is True
    # Not even a server that has not heard of the lock makes the session forget it.
    again = first.acquire()
    asked = [next(again)]
    while not isinstance(asked[-1], zk.Write):
        lagging = asked[-1] == zk.Read(f"{PATH}/lock")
        asked.append(again.send(None if lagging else tree.answer(1, asked[-1])))
    assert asked[0] == zk.Sync(PATH)
    with pytest.raises(StopIteration) as refused:
        again.send(tree.answer(1, asked[-1]))
    assert refused.value.value is False and first.claimed
    tree.run(1, first.release())
    assert not first.claimed and tree.run(2, node(b"b").acquire())


@pytest.mark.parametrize("secured", [True, False])
def test_the_first_node_is_for_all_users_and_with_one_the_others_belong_to_that_user(secured: bool) -> None:
    tree = Tree()
    assert tree.run(1, zk.LockNode(PATH, b"a" * 16, secured=secured).acquire())
    shared = [path for path, one in tree.nodes.items() if one.shared]
    assert shared == (["/meshq"] if secured else ["/meshq", "/meshq/test"])


def test_with_a_user_a_record_that_everybody_may_change_is_refused() -> None:
    tree, secured = Tree(), zk.LockNode(PATH, b"b" * 16, secured=True)
    first = node(b"a")
    assert tree.run(1, first.acquire()) and not tree.run(1, first.release())
    tree.open.add(PATH)
    with pytest.raises(SecurityError, match=f"everybody may change {PATH} in ZooKeeper"):
        tree.run(2, secured.acquire())
    assert not secured.claimed and tree.run(1, first.acquire())
    tree.run(1, first.release())
    tree.open.clear()
    assert tree.run(2, secured.acquire())


@pytest.mark.parametrize("arrived", [True, False])
def test_a_record_whose_answer_has_not_come_is_stored_once(arrived: bool) -> None:
    tree, first = Tree(), node(b"a")
    assert tree.run(1, first.acquire())
    write = tree.late(1, first.compare_and_set(ZERO, ONE))
    if arrived:
        assert write() is True
    tree.run(1, first.renew())
    assert tree.run(1, first.compare_and_set(ZERO, ONE))
    assert tree.run(1, first.read()) == ONE and len(tree.changed_by) == 1
    # Another one than is expected is replaced by nobody.
    assert not tree.run(1, first.compare_and_set(ZERO, TWO))


def test_a_renewal_by_somebody_whose_lock_has_gone_fails() -> None:
    tree, first = Tree(), node(b"a")
    assert tree.run(1, first.acquire())
    tree.run(1, first.renew())
    late = tree.late(1, first.renew())
    tree.expire(1)
    assert late() is False
    assert tree.run(2, node(b"b").acquire())
    assert late() is False
    with pytest.raises(RefusedError, match="is gone"):
        tree.run(1, first.renew())


def test_no_order_of_late_requests_lets_anybody_store_but_the_holder() -> None:
    stored = refused = 0
    for seed in range(300):
        dice, tree = random.Random(seed), Tree()
        nodes = {number: node(bytes([96 + number])) for number in (1, 2, 3)}
        under_way: list[tuple[int, bytes, Callable[[], zk.Answer]]] = []
        for turn in range(30):
            session = dice.choice((1, 2, 3))
            one, owner = nodes[session], tree.nodes.get(f"{PATH}/lock", Node(b"")).data
            match dice.randrange(6):
                case 0:
                    tree.run(session, one.acquire())
                case 1:
                    tree.expire(session)
                case 2 if under_way:
                    _, sender, write = under_way.pop(dice.randrange(len(under_way)))
                    before = len(tree.changed_by)
                    write()
                    # Whatever arrives late counts in the time of its own lock only.
                    assert tree.changed_by[before:] in ([], [sender])
                case 3:
                    steps = dice.choice((one.acquire, one.release))()
                    try:
                        under_way.append((session, owner, tree.late(session, steps)))
                    except StopIteration:
                        continue
                case _:
                    record = tree.run(session, one.read())
                    new = attrs.evolve(record, epoch=100 * seed + turn + 1)
                    try:
                        if dice.random() < 0.5:
                            assert tree.run(session, one.compare_and_set(record, new))
                            assert tree.changed_by[-1] == owner and tree.nodes[f"{PATH}/lock"].owner == session
                            stored += 1
                        else:
                            under_way.append((session, owner, tree.late(session, one.compare_and_set(record, new))))
                    except RefusedError:
                        refused += 1
    assert stored > 200 and refused > 200
