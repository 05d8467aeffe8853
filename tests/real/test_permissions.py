"""Permissions as users of a broker meet them: over the network, in the errors of their own calls."""

from __future__ import annotations

import pytest
import trio

from meshq import Broker, NotFoundError, Permissions, Security, SecurityError, SecurityRefused, connect

SECURITY = Security(
    users={"shop": "canary-shop", "books": "canary-books"},
    roles={"shop": {"sellers"}, "books": {"accountants", "operators"}},
    permissions={
        "#": Permissions(manage={"operators"}, create={"operators"}),
        "orders.#": Permissions(send={"sellers"}, consume={"accountants"}, create={"operators"}),
        "answers.#": Permissions(consume={"sellers"}, send={"accountants"}, create={"operators"}),
        "$temporary.#": Permissions(create={"sellers"}, send={"accountants"}),
    },
)
SHOP = {"user": "shop", "password": "canary-shop"}
BOOKS = {"user": "books", "password": "canary-books"}


def broker() -> Broker:
    return Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"], security=SECURITY)


async def test_everybody_does_what_they_may_and_the_rest_is_refused_by_name() -> None:
    async with broker() as node, connect(node.urls[0], **SHOP) as shop, connect(node.urls[0], **BOOKS) as books:
        with pytest.raises(SecurityError, match=r"'shop' lacks the permission 'create' at 'orders\.emea'") as caught:
            await shop.send("orders.emea", b"too early")
        assert caught.value.outcome == "not_done" and "canary" not in str(caught.value)
        await books.create_queue("orders.emea")
        await shop.send("orders.emea", b"42 umbrellas")
        with pytest.raises(SecurityError, match="'shop' lacks the permission 'consume'"):
            async with shop.consumer("orders.emea"):
                pytest.fail("it came in")
        with pytest.raises(SecurityError, match="'shop' lacks the permission 'browse'"):
            async with shop.consumer("orders.emea", browse=True):
                pytest.fail("it came in")
        with pytest.raises(SecurityError, match="'books' lacks the permission 'send'"):
            async with books.producer("orders.emea") as producer:
                await producer.send(b"forged")
        with pytest.raises(SecurityError, match="'shop' lacks the permission 'manage'"):
            await shop.purge_queue("orders.emea")
        with pytest.raises(SecurityError, match=r"at 'activemq\.management'"):
            await shop.remove_address_settings("#")
        with pytest.raises(NotFoundError):
            await books.remove_address_settings("#")
        async with books.consumer("orders.emea") as consumer:
            message = await consumer.receive(timeout=10)
            assert message is not None and message.body == b"42 umbrellas"
            await message.ack(confirm=True)
        assert (await books.queue("orders.emea")).acknowledged == 1
        assert node.statistics().requests_forbidden == 6
        async with node.client() as near:
            await near.send("anywhere", b"x")


async def test_requests_are_answered_to_who_asked_and_to_nobody_else() -> None:
    async with broker() as node, connect(node.urls[0], **SHOP) as shop, connect(node.urls[0], **BOOKS) as books:
        await books.create_queue("orders.prices")
        await books.create_queue("answers.shop")
        async with books.consumer("orders.prices") as questions:

            async def answer() -> None:
                question = await questions.receive(timeout=10)
                assert question is not None
                await question.reply(b"12")
                await question.ack()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(answer)
                assert (await shop.request("orders.prices", b"umbrella?", timeout=10)).body == b"12"
        await shop.send("orders.prices", b"x", reply_to="answers.shop")
        with pytest.raises(SecurityError, match=r"'shop' lacks the permission 'consume' at 'orders\.prices'"):
            await shop.send("orders.prices", b"x", reply_to="orders.prices")
        with pytest.raises(SecurityError, match="is not one of the user 'shop'"):
            await shop.send("orders.prices", b"x", reply_to="$temporary.somebody")


async def test_refusals_are_told_to_who_watches() -> None:
    async with broker() as node, connect(node.urls[0], **SHOP) as shop:
        events = node.events()
        with pytest.raises(SecurityError):
            await shop.purge_queue("orders.emea")
        with pytest.raises(SecurityError, match="the authentication failed"):
            async with connect(node.urls[0], user="shop", password="canary-wrong"):
                pytest.fail("it came in")
        found = [await anext(events), await anext(events)]
    assert [event.kind for event in found] == ["security_refused", "login_refused"]
    assert isinstance(found[0], SecurityRefused)
    assert (found[0].user, found[0].permission, found[0].address) == ("shop", "manage", "orders.emea")
    assert "canary" not in repr(found)
