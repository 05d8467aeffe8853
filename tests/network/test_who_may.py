"""What a user needs at the other broker, and what brokers ask each other for."""

from __future__ import annotations

from contextlib import AsyncExitStack

import attrs
import pytest
import trio

from meshq import Message, Permissions, Security, UsageError
from meshq.bridge import bridged_id
from tests.bridge.kit import numbered
from tests.network.kit import World, connectors, consuming, known, quiet, start, take, to, until, world


async def linked(made: World, *, duplex: bool, **permissions: set[str]) -> None:
    """Start b with a user, who may do this there, and a, which comes as this user."""
    everybody = {"send", "consume", "create", "manage", "browse"}
    given = {name: {"links"} for name in everybody if permissions.get(name)}
    security = Security(
        users={"link": "a long password"},
        roles={"link": {"links"}},
        permissions={"#": Permissions(**given)},  # type: ignore[arg-type]
    )
    await made.start("b", security=security)
    about = {"user": "link", "password": "a long password", "duplex": duplex}
    await made.start("a", connectors(("b", about)))
    await made.brokers["a"].network("to-b").wait_for(timeout=30)


async def test_a_user_that_may_send_is_enough_for_one_direction() -> None:
    async with world() as made:
        await linked(made, duplex=False, send={"links"})
        async with consuming(made, "b") as (_, there):
            await known(made, "ab", "q", 1)
            await made.send("a", "q", numbered(5))
            await take(there, 5)


async def test_a_wrong_password_is_told_by_the_link_and_a_right_one_mends_it_on_either_side(
    caplog: pytest.LogCaptureFixture,
) -> None:
    users = {"link": "a long password"}
    security = Security(users=users, roles={"link": {"links"}}, permissions={"#": Permissions(send={"links"})})
    async with world() as made:
        await made.start("b", security=security)
        await made.start("a", connectors(("b", {"user": "link", "password": "canary-wrong"})))
        link = made.brokers["a"].network("to-b")
        await until(lambda: link.bridges()[0].last_error is not None)
        told = link.bridges()[0]
        assert told.state == "connecting" and "the authentication failed: no such user, or another password" in str(
            told.last_error
        )
        assert "canary" not in str(told.last_error)
        assert [text for text in caplog.messages if "the link to-b to tcp://b:5000 can't be made: " in text]
        async with consuming(made, "b") as (_, there):
            await made.send("a", "q", numbered(5))
            await take(there, 0)
            # The connector is given the right one.
            await made.brokers["a"].remove_network("to-b")
            await made.brokers["a"].add_network(to("b", user="link", password="a long password"))
            await take(there, 5)
        # Or the other broker is: it has the one that was wrong now, and then the right one again.
        for password, state in (("another long one", "connecting"), ("a long password", "linked")):
            await made.stop("b")
            await made.start("b", security=attrs.evolve(security, users={"link": password}))
            link = made.brokers["a"].network("to-b")
            await until(lambda: link.bridges()[0].state == state)  # noqa: B023 - asked at once
            await quiet(2)
            assert link.bridges()[0].state == state


@pytest.mark.parametrize("manages", [True, False])
async def test_only_who_may_manage_is_told_of_the_store(manages: bool) -> None:
    async with world() as made:
        permissions = {"#": Permissions(send={"links"}, manage={"links"} if manages else set())}
        users, roles = {"link": "a long password"}, {"link": {"links"}}
        await made.start("b", security=Security(users=users, roles=roles, permissions=permissions))
        async with made.dial("b", user="link", password="a long password") as client:
            answer = await client._context.ask("network_demand", node_id="f" * 32, known=b"", after=0)
            assert ("store" in answer) is manages


async def test_nobody_can_send_the_ids_of_the_way_back_in_advance() -> None:
    async with world() as made:
        await start(made, {"h": "", "a": "h"}, duplex=True)
        async with made.here("h") as client:
            await client.create_queue("q")
            number = (await client.queue("q")).number
            store = (await client._context.ask("network_demand", node_id="f" * 32, known=b"", after=0))["store"]
        async with consuming(made, "a") as (_, there):
            ids = [bridged_id(store, number, sequence) for sequence in range(30)]
            await made.send("a", "q", [Message(b"bad", duplicate_id=one) for one in ids])
            await take(there, 30)
            await made.send("h", "q", numbered(10))
            await take(there, 10)


async def test_a_user_that_may_not_send_hears_of_no_demand() -> None:
    async with world() as made:
        await linked(made, duplex=False, consume={"links"})
        async with consuming(made, "b"):
            await quiet()
            assert made.brokers["a"].network("to-b").subscriptions() == ()


@pytest.mark.parametrize(("manages", "back"), [(True, 5), (False, 0)])
async def test_both_directions_take_a_user_that_may_consume_and_manage(manages: bool, back: int) -> None:
    async with world() as made:
        manage = {"manage": {"links"}} if manages else {}
        await linked(made, duplex=True, send={"links"}, consume={"links"}, create={"links"}, **manage)
        async with consuming(made, "b") as (_, there), consuming(made, "a", "back") as (_, here):
            await known(made, "ab", "q", 1)
            await made.send("a", "q", numbered(5))
            await take(there, 5)
            await quiet()
            await made.send("b", "back", numbered(5))
            await take(here, back)
            connector = made.brokers["a"].network("to-b")
            if not manages:
                await until(lambda: "'manage'" in str(connector.bridges()[0].last_error))


@pytest.mark.parametrize(
    "arguments", [{}, {"node_id": "b"}, {"node_id": "b" * 32, "known": ""}, {"node_id": "b" * 32, "more": 1}]
)
async def test_a_question_for_demand_that_is_none_is_refused(arguments: dict[str, object]) -> None:
    async with world() as made:
        await made.start("b")
        async with made.dial("b") as client:
            with pytest.raises(UsageError, match="network_demand takes node_id"):
                await client._context.ask("network_demand", **arguments)


@pytest.mark.parametrize("arguments", [{}, {"channel": 1, "routes": "b" * 32}, {"channel": "x", "routes": ""}])
async def test_the_ways_of_what_is_no_network_consumer_are_not_changed(arguments: dict[str, object]) -> None:
    async with world() as made:
        await made.start("b")
        async with made.dial("b") as client, client.consumer("q"):
            with pytest.raises(UsageError, match="network_routes takes"):
                await client._context.ask("network_routes", **arguments)


async def test_an_answer_of_several_pages_stays_as_it_was_begun_while_consumers_come_and_go() -> None:
    async with world() as made:
        await made.start("b")
        async with made.dial("b") as asking, made.here("b") as client, AsyncExitStack() as stack:
            names = [f"{number:02}.{'x' * 300}" for number in range(20)]
            for name in names:
                await stack.enter_async_context(client.consumer(name))
            rows: list[str] = []
            epochs = set()
            while True:
                answer = await asking._context.ask("network_demand", node_id="f" * 32, known=b"", after=len(rows))
                rows += [str(value) for name, value in answer.items() if name.startswith("address")]
                epochs.add(answer["epoch"])
                await stack.enter_async_context(client.consumer(f"new.{len(rows)}"))
                if not answer["more"]:
                    break
            assert (rows, len(epochs)) == (names, 1)
            # And what is known by then is answered anew.
            (epoch,) = epochs
            answer = await asking._context.ask("network_demand", node_id="f" * 32, known=epoch, after=0)
            assert answer["epoch"] != epoch


async def test_demand_that_changes_all_the_time_is_learned() -> None:
    async with world() as made:
        await made.start("b")
        names = [f"{number:02}.{'x' * 300}" for number in range(20)]
        async with made.here("b") as client, AsyncExitStack() as stack:
            for name in names:
                await stack.enter_async_context(client.consumer(name))

            async def churn() -> None:
                while True:
                    async with client.consumer("0"):
                        await trio.sleep(0.02)
                    await trio.sleep(0.02)

            async with trio.open_nursery() as nursery:
                for pair in ("ab", "ba"):
                    made.network.delay(*pair, 0.02, 0.02)
                nursery.start_soon(churn)
                await made.start("a", lambda: [to("b")])
                await made.brokers["a"].network("to-b").wait_for(queue=names[-1], consumers=1, timeout=20)
                nursery.cancel_scope.cancel()
