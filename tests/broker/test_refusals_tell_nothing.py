"""Whoever is refused something learns nothing of what is there: the refusal reads the same where it is not."""

from __future__ import annotations

from typing import Any

import pytest

from meshq.broker.management._divert_operations import create_divert
from meshq.errors import UsageError
from meshq.permissions import PERMISSIONS, Permissions
from meshq.settings import Security
from meshq.wire import Answer, Call, Consume, FrameType, Header, Produce, header_of
from tests.broker.kit import PRODUCER, FakeLog, House, RawClient, make_core

SECURITY = Security(
    users={"shop": "canary", "stranger": "canary"},
    roles={"shop": {"shops"}, "stranger": {"strangers"}},
    permissions={
        "orders.#": Permissions(**{name: {"shops"} for name in PERMISSIONS}),
        "mine.#": Permissions(**{name: {"strangers"} for name in PERMISSIONS}),
    },
)


def house_of(*, filled: bool) -> House:
    """A broker with the shop's queue, subscription and divert, or without."""
    house = House(make_core(FakeLog(), security=SECURITY))
    if filled:
        core = house.core
        core.definitions.create_queue("stock", address="orders.new", routing="anycast", durable=True)
        core.definitions.create_queue("orders.dead", address=None, routing="anycast", durable=True)
        about: dict[str, Any] = {"forwarding_address": "orders.dead", "filter": None, "exclusive": False}
        core.definitions.diverts.create("copies", address="orders.new", **about)
    return house


def stranger_of(house: House) -> RawClient:
    """The stranger's session."""
    client = house.client()
    assert client.attached is not None
    session = house.sessions.by_number[client.attached.session]
    session.principal.owner = ("client", "stranger")
    session.principal.rights = house.core.access.of(session.principal.owner)
    return client


def calls() -> dict[str, tuple[FrameType, Header]]:
    """What a stranger may ask, by its name."""
    found: dict[str, tuple[FrameType, Header]] = {}

    def call(operation: str, **arguments: Any) -> None:
        flat = tuple(item for pair in arguments.items() for item in pair)
        asked = ",".join(map(str, arguments.values()))
        found[f"{operation}({asked})"] = FrameType.CALL, Call(operation=operation, arguments=flat)

    for name in ("stock", "orders.dead", "orders.new::stock"):
        for operation in ("queue", "delete_queue", "purge_queue", "pause_queue", "resume_queue", "redrive"):
            call(operation, name=name)
        call("move_messages", name=name, address="mine.x")
        call("create_queue", name=name.rpartition(":")[2], address="mine.x")
        found[f"produce {name}"] = FrameType.PRODUCE, Produce(producer=PRODUCER, address=name)
        for browse in (False, True):
            header = Consume(queue=name, window=1, window_bytes=1_000, browse=browse)
            found[f"consume {name} {browse}"] = FrameType.CONSUME, header
    call("delete_divert", name="copies")
    call("create_divert", name="copies", address="orders.new", forwarding_address="mine.x")
    call("create_divert", name="mine", address="mine.x", forwarding_address="orders.new")
    for address in ("orders.new", "orders.dead", "stock"):
        call("explain_route", address=address)
        call("address_settings", address=address)
        call("unsubscribe", address=address, name="all")
        call("create_address", name=address, routing="anycast")
    call("queues")
    call("diverts")
    for operation in ("broker", "prepared", "bridges"):
        call(operation)
    call("trace", message_id=f"{PRODUCER.hex()}-1")
    return found


def told(house: House, frame_type: FrameType, header: Header) -> tuple[int, str, dict[str, Any]]:
    """Code, text and values of the answer."""
    client = stranger_of(house)
    fields = {} if frame_type is FrameType.CALL else {"channel": 1}
    client.request(frame_type, header, **fields)
    answer = header_of(client.last(FrameType.ANSWER), Answer)
    return answer.code, answer.text, answer.named


def test_a_name_for_a_divert_that_is_taken_says_nothing_of_who_has_it() -> None:
    about = ("name", "copies", "address", "mine.x", "forwarding_address", "mine.y")
    call = Call(operation="create_divert", arguments=about)
    assert told(house_of(filled=False), FrameType.CALL, call)[0] == 0
    code, text, _ = told(house_of(filled=True), FrameType.CALL, call)
    assert code and text == "another divert has the name 'copies'"


@pytest.mark.parametrize(
    ("there", "text"),
    [
        # By way of what nobody but the shop may know of, and back.
        ("orders.new", "the divert would close a loop"),
        # By way of their own.
        ("mine.y", "the divert would close a loop: mine.x -> mine.y -> mine.z -> mine.x"),
    ],
)
def test_a_loop_is_named_by_the_diverts_that_one_may_know_of_alone(there: str, text: str) -> None:
    house = house_of(filled=True)
    ways = {"1": ("orders.dead", "mine.x"), "2": ("mine.y", "mine.z"), "3": ("mine.z", "mine.x")}
    for name, (address, forwarding) in ways.items():
        about: dict[str, Any] = {"forwarding_address": forwarding, "filter": None, "exclusive": False}
        house.core.definitions.diverts.create(name, address=address, **about)
    stranger = stranger_of(house)
    session = stranger.attached.session if stranger.attached is not None else 0
    asker = house.sessions.by_number[session].principal
    with pytest.raises(UsageError) as refused:
        create_divert(house.core, asker, "back", "mine.x", there)
    assert str(refused.value) == text


@pytest.mark.parametrize("asked", calls())
def test_a_stranger_is_told_the_same_whether_it_is_there_or_not(asked: str) -> None:
    frame_type, header = calls()[asked]
    there = told(house_of(filled=True), frame_type, header)
    assert there == told(house_of(filled=False), frame_type, header)
    named = asked.partition("(")[2] or asked
    for name in ("stock", "orders.new", "orders.dead", "copies"):
        assert name in named or name not in there[1], there
