"""Permissions at the broker, in raw frames: everything that can be asked for, by who may and by who may not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from meshq.bridge import Bridge
from meshq.broker import RemoteBinding
from meshq.broker.cursors._cursor_machine import CursorRequest
from meshq.broker.management._management import OPERATIONS
from meshq.permissions import Permissions
from meshq.settings import AddressSettings, Security
from meshq.wire import (
    BY_NAME,
    FLAG_LAST,
    KIND_HEADERS,
    KIND_PLAIN,
    Answer,
    Consume,
    Envelope,
    FrameType,
    Refuse,
    encode_map,
    header_of,
)
from tests.broker.kit import FakeLog, House, RawClient, make_core
from tests.broker.peers import RawPeer
from tests.broker.redirectors import ToNowhere

FORBIDDEN = BY_NAME["forbidden"].number
SECURITY = Security(
    users=dict.fromkeys(("writer", "reader", "maker", "looker", "boss", "nobody"), "canary"),
    roles={name: {name} for name in ("writer", "reader", "maker", "looker", "boss", "nobody")},
    permissions={
        "#": Permissions(
            send={"writer", "boss"},
            consume={"reader", "boss"},
            create={"maker", "boss"},
            manage={"boss"},
            browse={"looker", "boss"},
        ),
        "other.#": Permissions(send={"nobody"}),
    },
)


def house_with(*queues: str, **options: Any) -> House:
    core = make_core(FakeLog(), security=SECURITY, **options)
    for name in queues:
        core.definitions.create_queue(name, address=None, routing="anycast", durable=True)
    return House(core)


def client_of(house: House, user: str, role: str = "client") -> RawClient:
    """A client whose user was proved."""
    client = house.client()
    assert client.attached is not None
    session = house.sessions.by_number[client.attached.session]
    session.principal.owner = (role, user)
    session.principal.rights = house.core.access.of(session.principal.owner)
    return client


def outcome(client: RawClient) -> str:
    """What the last request came to: empty if it was granted."""
    answer = header_of(client.last(FrameType.ANSWER), Answer)
    if answer.code in (0, BY_NAME["no_successor"].number, BY_NAME["backup_needed"].number):
        return ""
    assert answer.code == FORBIDDEN, answer.text
    return answer.text


def produce(client: RawClient) -> None:
    client.produce("q")


def consume(client: RawClient) -> None:
    client.consume("q")


def browse(client: RawClient) -> None:
    client.consume("q", browse=True)


def subscribe(client: RawClient, durable: bool = False) -> None:
    client.channels += 1
    header = Consume(queue="news", window=1, window_bytes=1, subscription="single", name="s", durable=durable)
    client.request(FrameType.CONSUME, header, channel=client.channels)


REQUESTS: list[tuple[Callable[[RawClient], object], set[str]]] = [
    (produce, {"writer"}),
    (consume, {"reader"}),
    (browse, {"looker"}),
    (subscribe, {"reader"}),
    (lambda client: subscribe(client, durable=True), set()),
]


@pytest.mark.parametrize("user", ["writer", "reader", "maker", "looker", "boss", "nobody"])
@pytest.mark.parametrize(("ask", "permitted"), REQUESTS, ids=["send", "consume", "browse", "subscribe", "durable"])
def test_each_use_of_an_address_needs_its_permission(
    ask: Callable[[RawClient], object], permitted: set[str], user: str
) -> None:
    house = house_with("q")
    house.core.definitions.create_address("news", "multicast")
    ask(client := client_of(house, user))
    refused = outcome(client)
    assert (not refused) is (user in {*permitted, "boss"})
    assert house.core.access.refused == (1 if refused else 0)
    if refused:
        assert repr(user) in refused and ("'q'" in refused or "'news'" in refused) and "canary" not in refused
        assert any(f"{name!r}" in refused for name in ("send", "consume", "create", "browse"))


#: Who may have each operation done: arguments that fit the house below, and users.
MANAGEMENT: dict[str, tuple[dict[str, Any], set[str]]] = {
    "create_address": ({"name": "new", "routing": "anycast"}, {"maker"}),
    "create_queue": ({"name": "new"}, {"maker"}),
    "create_temporary_queue": ({}, {"maker"}),
    "unsubscribe": ({"address": "news", "name": "desk"}, {"maker"}),
    "delete_queue": ({"name": "q"}, set()),
    "purge_queue": ({"name": "q"}, set()),
    "move_messages": ({"name": "q", "address": "q2"}, set()),
    "redrive": ({"name": "q"}, set()),
    "give_back": ({"node_id": "0" * 32}, set()),
    "set_address_settings": ({"pattern": "q"}, set()),
    "remove_address_settings": ({"pattern": "set"}, set()),
    "address_settings": ({"address": "q"}, {"reader", "looker"}),
    "pause_queue": ({"name": "q"}, set()),
    "resume_queue": ({"name": "q"}, set()),
    "queue": ({"name": "q"}, {"reader", "looker"}),
    "queues": ({}, {"writer", "reader", "maker", "looker", "nobody"}),
    "create_divert": ({"name": "d", "address": "q", "forwarding_address": "q2"}, set()),
    "delete_divert": ({"name": "there"}, set()),
    "explain_route": ({"address": "q"}, set()),
    "trace": ({"message_id": "00" * 16 + "-1"}, set()),
    "trace_hops": ({"message_id": "00" * 16 + "-1"}, set()),
    "explain_arrival": ({"address": "q", "name": "q"}, set()),
    "stuck": ({}, set()),
    "cluster_nodes": ({}, {"writer", "reader", "maker", "looker", "nobody"}),
    "node_queue": ({"name": "q"}, {"reader", "looker"}),
    "ask_node": (
        {"node_id": "00" * 16, "question": "node_queue", "arguments": encode_map({"name": "q"})},
        {"reader", "looker"},
    ),
    "pin_groups": (
        {
            "cluster": "mesh",
            "node_id": "00" * 16,
            "instance": "00" * 16,
            "serial": 1,
            "members": "",
            "names": encode_map({}),
            "begins": True,
            "complete": True,
            "lacks": False,
        },
        set(),
    ),
    "hosted_backups": ({"node_id": ""}, set()),
    "host_backup": ({"request": b""}, set()),
    "ha": ({}, set()),
    "end_backup": ({"name": "colocated_backup_1"}, set()),
    "fail_over": ({}, set()),
    "fail_back": ({}, set()),
    "balancers": ({}, set()),
    "balancer_targets": ({"name": "lb"}, set()),
    # Whoever can't be sent on has to be able to ask.
    "balancer_target": ({"name": "lb", "key": "k"}, {"writer", "reader", "maker", "looker", "nobody"}),
    "explain_balancer": ({"name": "lb", "key": "k"}, set()),
    "set_balancer_filter": ({"name": "lb", "setting": "target_key_filter", "text": None}, set()),
    "prepared": ({}, set()),
    "broker": ({}, set()),
    "bridges": ({}, set()),
    "pause_bridge": ({"name": "b"}, set()),
    "resume_bridge": ({"name": "b"}, set()),
    "diverts": ({}, {"writer", "reader", "maker", "looker", "nobody"}),
    "open_cursor": ({"queue": "q", "name": "c", "token": "a", "lease_ms": 1_000}, {"reader"}),
    "renew_cursor": ({"queue": "taped", "name": "c", "fence": 1}, {"reader"}),
    "pin_cursor": ({"queue": "taped", "name": "c", "fence": 1, "number": 1}, {"reader"}),
    "ack_cursor": ({"queue": "taped", "name": "c", "fence": 1, "number": 1}, {"reader"}),
    "release_cursor": ({"queue": "taped", "name": "c", "fence": 1}, {"reader"}),
    # The reader has registered it.
    "delete_cursor": ({"queue": "taped", "name": "c"}, {"reader"}),
    "cursor_lag": ({"queue": "taped", "name": "c"}, {"reader"}),
    # A sink that nobody has used is whose commit comes first, of those who may send anything.
    "commit_batch": ({"sink": "new", "batch": 0, "stages": b""}, {"writer", "nobody"}),
    "abandon_batch": ({"sink": "new", "batch": 0}, {"writer", "reader", "maker", "looker", "nobody"}),
    "sinks": ({}, {"writer", "reader", "maker", "looker", "nobody"}),
    "stages": ({}, {"writer", "reader", "maker", "looker", "nobody"}),
    "delete_sink": ({"sink": "used"}, set()),
    "holes": ({"queue": "q", "lo": 1, "hi": 1}, {"reader", "looker"}),
    "cursors": ({}, {"writer", "reader", "maker", "looker", "nobody"}),
}


def test_no_operation_is_forgotten_here() -> None:
    assert set(MANAGEMENT) == set(OPERATIONS)


@pytest.mark.parametrize("user", ["writer", "reader", "maker", "looker", "boss", "nobody"])
@pytest.mark.parametrize("operation", MANAGEMENT)
def test_each_operation_needs_its_permission(operation: str, user: str) -> None:
    house = house_with("q", "q2", "taped", settings={"#": AddressSettings()})
    core = house.core
    fence = with_a_cursor(house)
    core.settings.controlled["b"] = Bridge("b", queue="q", target="there")
    core.definitions.diverts.create("there", address="a", forwarding_address="b", filter=None, exclusive=False)
    core.definitions.settings.set("set", {})
    core.definitions.forward_queue(f"$meshq.cluster.mesh.{'0' * 32}")
    core.definitions.subscription("news", "desk", kind="single", durable=True, filter=None)
    core.transactions.stages.commit("used", 0, [], "boss")
    core.settings.redirectors["lb"] = ToNowhere()
    arguments, permitted = MANAGEMENT[operation]
    if "fence" in arguments:
        arguments = arguments | {"fence": fence}
    client = client_of(house, user)
    before = house.log.last
    client.call(operation, **arguments)
    refused = outcome(client)
    everybody = set() if OPERATIONS[operation].only_nodes else {*permitted, "boss"}
    assert (not refused) is (user in everybody), refused
    if refused:
        assert house.log.last == before


def with_a_cursor(house: House) -> int:
    """Have the reader register a cursor of the queue ``taped``, and return its fence."""
    wanted = CursorRequest(name="c", user="reader", token="a", holder="test", lease_ms=1_000)
    cursor = house.core.cursors.open(house.queue("taped"), wanted)
    assert cursor is not None
    return cursor.facts.fence


def test_lists_show_what_one_may_know_of() -> None:
    house = house_with("q", "other.q")
    house.core.definitions.diverts.create("d", address="q", forwarding_address="x", filter=None, exclusive=False)
    house.core.definitions.diverts.create("e", address="other.q", forwarding_address="x", filter=None, exclusive=False)
    assert client_of(house, "reader").call("queues") == {"queue0": "q", "more": False}
    assert client_of(house, "writer").call("queues") == {"more": False}
    assert (client_of(house, "looker").call("diverts") or {}).get("name0") == "d"
    assert house.client().call("queues") == {"queue0": "other.q", "queue1": "q", "more": False}


@pytest.mark.parametrize("operation", ["node_queue", "ask_node", "stuck", "purge_queue", "explain_route"])
def test_another_node_may_ask_for_what_nodes_tell_each_other_and_for_nothing_else(operation: str) -> None:
    house = house_with("q")
    peer = client_of(house, "mesh", role="peer")
    peer.call(operation, **MANAGEMENT[operation][0])
    assert (not outcome(peer)) is (operation in ("node_queue", "ask_node")) is OPERATIONS[operation].between_nodes


@pytest.mark.parametrize(
    "changed", [{"node_id": "01" * 16}, {"instance": "01" * 16}, {"node_id": ""}, {"node_id": "é" * 32}]
)
def test_a_letter_about_pins_comes_over_the_link_of_its_node_only(changed: dict[str, str]) -> None:
    house = house_with("q")
    heard: list[Any] = []
    mesh: Any = SimpleNamespace(pin_groups=lambda letter: heard.append(letter) or {})
    house.core.settings.clusters["mesh"] = mesh
    letter = MANAGEMENT["pin_groups"][0]
    peer = RawPeer(house)
    peer.shake()
    for unlinked in (letter, {**letter, "node_id": "", "instance": ""}):
        peer.call("pin_groups", **unlinked)
        assert "comes over its own link" in outcome(peer)
    peer.open(node_id=bytes(16), instance=bytes(16))
    peer.call("pin_groups", **{**letter, **changed})
    assert "comes over its own link" in outcome(peer)
    assert heard == []
    peer.call("pin_groups", **letter)
    assert outcome(peer) == ""
    assert len(heard) == 1


def test_no_client_sends_a_letter_about_pins_nor_has_a_node_send_one() -> None:
    core = make_core(FakeLog())
    heard: list[Any] = []
    mesh: Any = SimpleNamespace(
        pin_groups=lambda letter: heard.append(letter) or {},
        members=lambda: [SimpleNamespace(node_id=bytes(16), state="linked", distance=1)],
        ask=lambda *question: heard.append(question),
    )
    core.settings.clusters["mesh"] = mesh
    house = House(core)
    letter = MANAGEMENT["pin_groups"][0]
    about = {"node_id": "00" * 16, "question": "pin_groups", "arguments": encode_map(letter)}
    for client in (house.client(), client_of(house, "mesh", role="peer")):
        client.call("ask_node", **about)
        answer = header_of(client.last(FrameType.ANSWER), Answer)
        assert "other nodes are not asked for 'pin_groups'" in answer.text
    client = house.client()
    client.call("pin_groups", **letter)
    assert "only another node" in outcome(client)
    assert heard == []


def test_where_no_pattern_fits_nothing_is_permitted() -> None:
    security = Security(users={"app": "x"}, roles={"app": {"r"}}, permissions={"a.#": Permissions(send={"r"})})
    house = House(make_core(FakeLog(), security=security))
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    client = client_of(house, "app")
    produce(client)
    assert "'send' at 'q'" in outcome(client)


def test_a_narrower_pattern_takes_away_what_a_wider_one_gave() -> None:
    house = house_with("q", "other.q")
    client = client_of(house, "writer")
    client.produce("other.q")
    assert "'send' at 'other.q'" in outcome(client)
    other = client_of(house, "nobody")
    other.produce("other.q")
    assert outcome(other) == ""


def test_first_use_brings_something_into_being_only_for_who_may_create() -> None:
    house = house_with()
    for user, ask in (("writer", produce), ("reader", consume)):
        ask(client := client_of(house, user))
        assert "'create' at 'q'" in outcome(client)
    assert list(house.core.router.queues) == []
    produce(boss := client_of(house, "boss"))
    assert outcome(boss) == "" and list(house.core.router.queues) == ["q"]
    client = client_of(house, "writer")
    client.produce("q", b"writer----------")
    assert outcome(client) == ""


@pytest.mark.parametrize("name", ["q", "q::q", "q::mine"])
@pytest.mark.parametrize("known_here", [True, False])
def test_to_read_what_is_only_on_another_node_makes_a_queue_here_for_who_may_create(
    name: str, known_here: bool
) -> None:
    house = house_with()
    if known_here:
        house.core.definitions.create_address("q", "anycast")
    forward = house.core.definitions.forward_queue("$meshq.cluster.mesh.b")
    house.core.router.bind(b"b", RemoteBinding(forward, "on_demand", 7, "q", "q", "anycast", 1, ()))
    (client := client_of(house, "reader")).consume(name)
    assert "'create' at 'q'" in outcome(client)
    assert list(house.core.router.queues) == [forward.name]
    (boss := client_of(house, "boss")).consume(name)
    assert outcome(boss) == "" and list(house.core.router.queues) == [forward.name, name.rpartition(":")[2]]


def test_a_channel_does_not_outlive_what_was_permitted_with_it() -> None:
    house = house_with("q")
    writer, boss = client_of(house, "writer"), client_of(house, "boss")
    channel = writer.produce("q")
    assert writer.put(channel, b"1") == 1 and not writer.refused()
    boss.call("delete_queue", name="q")
    writer.put(channel, b"2", b"3")
    assert writer.refused() == [(2, 2, FORBIDDEN)] and list(house.core.router.queues) == []
    boss.call("create_queue", name="q")
    writer.put(channel, b"4")
    assert house.queue().counts.added == 1


def wanting(reply_to: str) -> list[Envelope]:
    """One message that wants its answer there."""
    return [Envelope(KIND_PLAIN | KIND_HEADERS, b"", encode_map({"r": reply_to}), b"")]


def test_answers_are_wanted_only_where_the_sender_may_take_them() -> None:
    house = house_with("q", "mine", "other.mine")
    boss, writer = client_of(house, "boss"), client_of(house, "writer")
    own = str((boss.call("create_temporary_queue") or {})["name"])
    again = str((client_of(house, "boss").call("create_temporary_queue") or {})["name"])
    channel = boss.produce("q")
    for good in ("mine", own, again):
        boss.put(channel, b"1", envelopes=wanting(good))
        assert not boss.refused()
    # Answers to the last one would be requests of who answers.
    for bad in ("other.mine", "$temporary.gone", "activemq.management"):
        boss.put(channel, b"1", envelopes=wanting(bad))
        assert boss.refused()[-1][2] == FORBIDDEN
    # Whoever was asked by somebody may not have others answer them.
    channel = writer.produce("q", b"writer----------")
    writer.put(channel, b"1", envelopes=wanting(own))
    writer.put(channel, b"1", envelopes=wanting("mine"))
    # Nor by writing the key in another way.
    hidden = b"\x81\xd9\x01r" + encode_map({"r": own})[3:]
    writer.put(channel, b"1", envelopes=[Envelope(KIND_PLAIN | KIND_HEADERS, b"", hidden, b"")])
    assert [code for _, _, code in writer.refused()] == [FORBIDDEN] * 3
    text = header_of(writer.last(FrameType.REFUSE), Refuse).text
    assert "'writer'" in text and own in text
    assert house.queue().counts.added == 3


def test_who_is_asked_about_and_is_not_there_is_not_remembered() -> None:
    house = house_with("q")
    boss = client_of(house, "boss")
    for number in range(10):
        values = boss.call("explain_route", address="q", user=f"somebody {number}")
        assert values is not None and values["permitted"] is False
    assert list(house.core.access._users) == ["boss"]


def test_what_was_moved_goes_back_only_where_one_may_send() -> None:
    house = house_with("q", settings={"other.#": AddressSettings(dead_letter_address="q")})
    free = house.client()
    free.put(free.produce("other.q"), b"1")
    free.call("move_messages", name="other.q", address="q")
    assert house.queue().counts.ready == 1
    boss = client_of(house, "boss")
    boss.call("redrive", name="q")
    assert "0 messages were moved" in outcome(boss) and house.queue().counts.ready == 1
    boss.call("move_messages", name="q", address="other.q")
    assert "'send' at 'other.q'" in outcome(boss)
    free.call("redrive", name="q")
    assert house.queue().counts.ready == 0


@pytest.mark.parametrize("picky", [False, True])
def test_what_may_not_go_back_stays_and_holds_nothing_up(picky: bool) -> None:
    house = house_with("q", "aside")
    free, boss = house.client(), client_of(house, "boss")
    for name in ("other.one", "q", "other.one", "other.two"):
        free.put(free.produce(name), name.encode())
        assert free.call("move_messages", name=name, address="aside") == {"moved": 1}
    if picky:
        free.call("delete_queue", name="q")
        free.call("create_queue", name="q", address="q", filter="k = 1")
    assert boss.call("redrive", name="aside") == ({} if picky else {"outcome": "unknown"})
    text = outcome(boss)
    assert text.startswith("0 messages were moved" if picky else "1 messages were moved")
    assert "'send' at 'other.one'" in text
    stay = "this is the first of 3 others, which stay"
    assert text.endswith(f"{stay}, as do 1 that nobody takes" if picky else stay)
    assert (house.queue().counts.ready, house.queue("aside").counts.ready) == ((0, 4) if picky else (1, 3))
    # Each place once, however much was there.
    assert len(house.host.warnings) == 2
    house.check()


def test_what_is_moved_or_diverted_makes_an_address_only_for_who_may_create() -> None:
    security = Security(
        users={"app": "x"}, roles={"app": {"r"}}, permissions={"#": Permissions(send={"r"}, manage={"r"})}
    )
    house = House(make_core(FakeLog(), security=security))
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    client = client_of(house, "app")
    client.call("move_messages", name="q", address="new")
    assert "'create' at 'new'" in outcome(client)
    client.call("create_divert", name="d", address="q", forwarding_address="new")
    assert "'create' at 'new'" in outcome(client)
    assert list(house.core.router.addresses) == ["q"] and not house.core.router.diverts.by_name


def test_a_large_body_comes_in_from_who_may_send_somewhere_and_from_nobody_else() -> None:
    house = house_with("q")
    for user, permitted in (("reader", False), ("writer", True), ("nobody", True)):
        client = client_of(house, user)
        client.channels += 1
        client.calls += 1
        client.send(FrameType.BLOCK, flags=FLAG_LAST, channel=client.channels, first=client.calls, body=b"x" * 100)
        refused = outcome(client)
        assert (not refused) is permitted and (permitted or "'send' at '#'" in refused)
    assert house.core.access.refused == 1


def test_a_node_may_do_nothing_that_a_client_does() -> None:
    house = house_with("q")
    for security in (SECURITY, Security(users={"app": "x"})):
        core = make_core(FakeLog(), security=security)
        core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
        house = House(core)
        for ask in (produce, consume, lambda one: one.call("delete_queue", name="q")):
            ask(client := client_of(house, "cluster", role="peer"))
            assert "'cluster'" in outcome(client)


def test_users_without_permissions_and_clients_that_nobody_asked_may_do_everything() -> None:
    house = House(make_core(FakeLog(), security=Security(users={"app": "x"})))
    assert house.core.access.of(("client", "app")) is None
    assert house_with().core.access.of(("client", "")) is None


def test_what_is_permitted_is_worked_out_once_and_not_for_ever_more_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meshq.limits.PERMITTED_ADDRESSES_MAX", 10)
    rights = house_with().core.access.of(("client", "boss"))
    assert rights is not None and "app" not in repr(rights) and "boss" in repr(rights)
    assert rights.at("q") is rights.at("q")
    for number in range(100):
        rights.at(f"q{number}")
        rights.at(f"$temporary.{number}")
    assert len(rights._known) <= 10
