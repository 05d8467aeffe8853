"""Names of queues are for whoever may create at them as at an address; and who may not, learns nothing of them."""

from __future__ import annotations

from typing import Any

import pytest

from meshq.permissions import Permissions
from meshq.settings import AddressSettings, Security
from meshq.wire import BY_NAME, FLAG_DURABLE, Answer, FrameType, Transact, encode_run, header_of
from tests.broker.kit import PRODUCER, FakeLog, House, RawClient, as_user, make_core

FORBIDDEN = BY_NAME["forbidden"].number
MINE = Permissions(
    send={"stranger"}, consume={"stranger"}, create={"stranger"}, manage={"stranger"}, browse={"stranger"}
)
SECURITY = Security(
    users={"stranger": "canary", "shop": "canary"},
    roles={"stranger": {"stranger"}, "shop": {"shop"}},
    permissions={
        "mine.#": MINE,
        "orders.#": Permissions(send={"shop"}, consume={"shop"}, create={"shop"}, manage={"shop"}),
    },
)


def house_of(**options: Any) -> House:
    return House(make_core(FakeLog(), security=SECURITY, **options))


def text(client: RawClient) -> str:
    """What the last answer says; empty if all is well."""
    answer = header_of(client.last(FrameType.ANSWER), Answer)
    return answer.text if answer.code else ""


def transact(client: RawClient, address: str, xid: bytes = b"") -> None:
    run = encode_run([b"x"], None)
    header = Transact(transaction=1, address=address, producer=PRODUCER, number=1, sent=0)
    client.calls += 1
    client.send(
        FrameType.TRANSACT, header, first=client.calls, count=1, flags=FLAG_DURABLE, table=run.table, body=run.body
    )
    if xid:
        client.call("prepare", transaction=1, sent=1, acked=0, xid=xid)


def create(client: RawClient) -> None:
    client.call("create_queue", name="orders.new", address="mine.x")


def send(client: RawClient) -> None:
    client.produce("mine.x::orders.new")


def consume(client: RawClient) -> None:
    client.consume("mine.x::orders.new")


def transaction(client: RawClient) -> None:
    transact(client, "mine.x::orders.new")


@pytest.mark.parametrize("way", [create, send, consume, transaction])
@pytest.mark.parametrize("there", [False, True])
def test_who_may_create_at_one_address_takes_no_name_that_another_one_needs(way: Any, there: bool) -> None:
    house = house_of(settings={"orders.#": AddressSettings(dead_letter_address="orders.dead")})
    stranger, shop = as_user(house, "stranger"), as_user(house, "shop")
    if there:
        stranger.call("create_address", name="mine.x", routing="anycast")
    way(stranger)
    assert "the user 'stranger' lacks the permission 'create' at 'orders.new'" in text(stranger)
    assert "orders.new" not in house.core.router.queues
    channel = shop.produce("orders.new")
    shop.put(channel, b"1")
    assert not shop.refused() and house.queue("orders.new").counts.ready == 1


@pytest.mark.parametrize("way", [create, send, consume, transaction])
def test_whoever_may_create_at_both_may_name_a_queue_so(way: Any) -> None:
    both = {**SECURITY.permissions, "orders.new": MINE}  # type: ignore[dict-item]
    house = House(make_core(FakeLog(), security=Security(users=SECURITY.users, roles=SECURITY.roles, permissions=both)))
    stranger = as_user(house, "stranger")
    way(stranger)
    assert text(stranger) == ""


@pytest.mark.parametrize("way", [create, send, consume, transaction])
def test_a_queue_that_is_there_keeps_its_name_whoever_made_it(way: Any) -> None:
    """Also in a store that is older than the rule."""
    house = house_of()
    house.core.definitions.create_queue("orders.new", address="mine.x", routing="anycast", durable=True)
    log = house.log.after_crash(house.log.last)
    house = House(make_core(log, records=house.log.recovered(), security=SECURITY))
    stranger = as_user(house, "stranger")
    way(stranger)
    assert text(stranger) == "" and house.queue("orders.new").address == "mine.x"


def test_subscriptions_and_temporary_queues_are_named_as_before() -> None:
    permissions = {**SECURITY.permissions, "$temporary.#": MINE}  # type: ignore[dict-item]
    house = House(
        make_core(FakeLog(), security=Security(users=SECURITY.users, roles=SECURITY.roles, permissions=permissions))
    )
    stranger = as_user(house, "stranger")
    stranger.call("create_address", name="mine.news", routing="multicast")
    stranger.consume("mine.news", subscription="shared", name="orders.new", durable=True)
    assert text(stranger) == ""
    stranger.call("create_temporary_queue")
    assert text(stranger) == ""
    stranger.call("create_queue", name="mine.y")
    assert text(stranger) == ""
    shop = as_user(house, "shop")
    shop.produce("orders.new")
    assert text(shop) == ""


def test_a_name_that_is_taken_is_not_said_where() -> None:
    house = house_of()
    house.core.definitions.create_queue("mine.y", address="orders.secret", routing="anycast", durable=True)
    stranger = as_user(house, "stranger")
    asked = [
        lambda: stranger.call("create_queue", name="mine.y"),
        lambda: stranger.call("create_queue", name="mine.y", address="mine.x"),
        lambda: stranger.produce("mine.y"),
        lambda: stranger.produce("mine.x::mine.y"),
        lambda: stranger.consume("mine.y"),
        lambda: stranger.consume("mine.x::mine.y"),
        lambda: stranger.call("queue", name="mine.y"),
        lambda: stranger.call("delete_queue", name="mine.y"),
    ]
    for ask in asked:
        ask()
        said = text(stranger)
        assert "mine.y" in said and "secret" not in said, said


def test_whether_a_name_is_taken_elsewhere_is_not_said_to_who_may_not_take_it() -> None:
    said = []
    for taken in (False, True):
        house = house_of()
        if taken:
            house.core.definitions.create_queue("orders.new", address="orders.secret", routing="anycast", durable=True)
        stranger = as_user(house, "stranger")
        stranger.call("create_queue", name="orders.new", address="mine.x")
        said.append(text(stranger))
    assert said[0] == said[1] and "lacks the permission 'create'" in said[0], said


def test_an_explanation_knows_that_the_name_is_judged_too() -> None:
    house = house_of()
    boss = house.client()
    for address, permitted in (("mine.x::mine.y", True), ("mine.x::orders.new", False)):
        values = boss.call("explain_route", address=address, user="stranger")
        assert values is not None and (values["creates"], values["permitted"]) == (True, permitted)


def test_the_commit_of_a_prepared_transaction_makes_only_what_its_user_may_create() -> None:
    """What was there when the message was sent may be gone at the commit, which would make it anew."""
    house = house_of()
    house.core.definitions.create_queue("mine.q", address=None, routing="anycast", durable=True)
    house.core.definitions.create_queue("orders.new", address="mine.x", routing="anycast", durable=True)
    stranger = as_user(house, "stranger")
    transact(stranger, "mine.x::orders.new", b"x")
    assert text(stranger) == ""
    # Nobody may delete it meanwhile; one that isn't durable goes with the life of its node.
    house.core.remove(house.queue("orders.new"))
    for _ in range(2):
        stranger.call("commit_prepared", xid=b"x")
        assert header_of(stranger.last(FrameType.ANSWER), Answer).code == BY_NAME["retry_transaction"].number
        assert "'create' at 'orders.new'" in text(stranger)
        assert "orders.new" not in house.core.router.queues and house.core.transactions.two_phase.prepared_by(b"x", "")
    # Whoever may create it makes it so that the commit succeeds.
    house.core.definitions.create_queue("orders.new", address="mine.x", routing="anycast", durable=True)
    stranger.call("commit_prepared", xid=b"x")
    assert text(stranger) == "" and house.queue("orders.new").counts.ready == 1
