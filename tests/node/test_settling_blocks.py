"""``async with delivery`` and ``client.serve``: what becomes of a message when the work on it ends."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from meshq import (
    AddressSettings,
    BodyFormatError,
    Client,
    Delivery,
    FilterError,
    Message,
    NotFoundError,
    SettingsError,
    StaleDeliveryError,
    UsageError,
)
from tests.node.lives import Lives, lives


async def counts(client: Client, queue: str = "q") -> tuple[int, int, int, int]:
    """Ready, held, acknowledged and rejected."""
    await client.flush()
    found = await client.queue(queue)
    return found.ready, found.delivering, found.acknowledged, found.rejected


@asynccontextmanager
async def one(client: Client) -> AsyncIterator[Delivery]:
    """A message of "q", and the consumer that has received it."""
    async with client.consumer("q") as consumer:
        delivery = await consumer.receive(timeout=5)
        assert delivery is not None
        yield delivery


async def test_a_message_is_acknowledged_at_the_end_of_its_block() -> None:
    async with lives() as node, node.client() as client:
        await client.send("q", b"1")
        async with one(client) as delivery, delivery:
            assert await counts(client) == (0, 1, 0, 0)
            assert delivery.body == b"1"
        assert await counts(client) == (0, 0, 1, 0)


async def test_a_message_is_given_back_when_its_block_raises_and_the_error_goes_on() -> None:
    slow = {"q": AddressSettings(redelivery_delay=60)}
    async with lives(address_settings=slow) as node, node.client() as client:
        await client.send("q", b"1")
        await _raised(client)


async def _raised(client: Client) -> None:
    async with one(client) as delivery:
        with pytest.raises(ZeroDivisionError):
            async with delivery:
                raise ZeroDivisionError
        # As a nack: it waits as long as its address says.
        assert await delivery.consumer.receive(timeout=1) is None
        assert (await client.queue("q")).delayed == 1


async def test_a_message_is_given_back_at_once_when_its_block_is_cancelled() -> None:
    slow = {"q": AddressSettings(redelivery_delay=60)}
    async with lives(address_settings=slow) as node, node.client() as client:
        await client.send("q", b"1")
        await _cancelled(client)


async def _cancelled(client: Client) -> None:
    async with one(client) as delivery:
        with trio.move_on_after(1) as scope:
            async with delivery:
                await trio.sleep_forever()
        assert scope.cancelled_caught
        before = trio.current_time()
        again = await delivery.consumer.receive(timeout=5)
        assert again is not None and again.redelivered
        assert trio.current_time() - before < 1


@pytest.mark.parametrize("how", ["ack", "nack", "reject", "transaction"])
@pytest.mark.parametrize("fails", [False, True])
async def test_what_the_body_has_settled_is_left_alone(how: str, fails: bool) -> None:
    async with lives() as node, node.client() as client:
        await client.send("q", b"1")
        await _settled_by(how, client, fails)


async def _settled_by(how: str, client: Client, fails: bool) -> None:
    async with one(client) as delivery:
        try:
            async with delivery:
                if how == "transaction":
                    async with client.transaction() as tx:
                        await tx.ack(delivery)
                else:
                    await getattr(delivery, how)()
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            assert fails
        expected = {"ack": (0, 0, 1, 0), "nack": (0, 1, 0, 0), "reject": (0, 0, 0, 1), "transaction": (0, 0, 1, 0)}
        assert await counts(client) == expected[how]


@pytest.mark.parametrize("how", [{"ack": "auto"}, {"browse": True}])
async def test_what_is_settled_by_being_handed_over_has_no_block(how: dict[str, object]) -> None:
    async with lives() as node, node.client() as client:
        await client.send("q", b"1")
        async with client.consumer("q", **how) as consumer:  # type: ignore[arg-type]
            delivery = await consumer.receive(timeout=5)
            assert delivery is not None
            with pytest.raises(UsageError, match="nothing to settle"):
                async with delivery:
                    raise AssertionError("it was entered")


async def test_work_on_a_message_of_a_consumer_that_is_gone_is_told_that_it_comes_again() -> None:
    async with lives() as node, node.client() as client:
        await client.send("q", b"1")
        for fails in (False, True):
            async with client.consumer("q") as consumer:
                delivery = await consumer.receive(timeout=5)
                assert delivery is not None
            if fails:
                # The body's own error is the one to be told.
                with pytest.raises(ZeroDivisionError):
                    async with delivery:
                        raise ZeroDivisionError
            else:
                with pytest.raises(StaleDeliveryError):
                    async with delivery:
                        pass
        assert await counts(client) == (1, 0, 0, 0)


# -- serve


class Handled:
    """A handler that waits to be let on, and what it has seen."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.done: list[bytes] = []
        self.go = trio.Event()
        self.most = 0

    async def __call__(self, delivery: Delivery) -> None:
        """Work on one message."""
        self.begun.append(delivery.body)
        self.most = max(self.most, len(self.begun) - len(self.done))
        await self.go.wait()
        self.done.append(delivery.body)


async def filled(node: Lives, client: Client, messages: int = 10) -> list[bytes]:
    bodies = [b"%d" % number for number in range(messages)]
    await client.send_many("q", bodies)
    return bodies


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_so_many_handlers_run_at_a_time_and_no_more(concurrency: int) -> None:
    async with lives() as node, node.client() as client, trio.open_nursery() as nursery:
        sent = await filled(node, client)
        handled = Handled()

        async def serve() -> None:
            await client.serve("q", handled, concurrency=concurrency)

        nursery.start_soon(serve)
        await trio.sleep(1)
        begun = sorted(handled.begun)
        # The rest is for others, but for as many as go on with at once.
        found = await client.queue("q")
        # Nothing is claimed before: a worker ends with its handlers only.
        handled.go.set()
        await trio.sleep(1)
        assert begun == sent[:concurrency]
        assert (found.delivering, found.ready) == (2 * concurrency, 10 - 2 * concurrency)
        assert sorted(handled.done) == sorted(sent) and handled.most == concurrency
        assert await counts(client) == (0, 0, 10, 0)
        nursery.cancel_scope.cancel()


async def test_a_cancelled_worker_finishes_what_it_has_begun_and_receives_nothing_more() -> None:
    async with lives() as node, node.client() as client, trio.open_nursery() as nursery:
        sent = await filled(node, client)
        handled = Handled()
        scope = trio.CancelScope()

        async def serve() -> None:
            with scope:
                await client.serve("q", handled, concurrency=2)
                raise AssertionError("it was not cancelled")

        nursery.start_soon(serve)
        await trio.sleep(1)
        scope.cancel()
        await trio.sleep(1)
        assert (sorted(handled.begun), handled.done) == (sent[:2], [])
        handled.go.set()
        await trio.sleep(1)
        assert scope.cancelled_caught
        assert sorted(handled.done) == sent[:2]
        assert await counts(client) == (8, 0, 2, 0)


async def test_a_stopped_worker_returns_when_what_it_has_begun_is_finished() -> None:
    async with lives() as node, node.client() as client, trio.open_nursery() as nursery:
        sent = await filled(node, client)
        handled = Handled()
        returned: list[None] = []

        async def serve() -> None:
            returned.append(await client.serve("q", handler=handled, concurrency=2))

        nursery.start_soon(serve)
        await trio.sleep(1)
        client.stop_serving()
        await trio.sleep(1)
        assert (handled.done, returned) == ([], [])
        handled.go.set()
        await trio.sleep(1)
        assert (sorted(handled.done), returned) == (sent[:2], [None])
        # A worker that was about to begin does not hang.
        await client.serve("q", handled)
        assert len(handled.begun) == 2
        assert await counts(client) == (8, 0, 2, 0)


async def test_a_handler_that_fails_gives_its_message_back_and_the_worker_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = {"q": AddressSettings(max_delivery_attempts=3, dead_letter_address="dead")}
    async with lives(address_settings=settings) as node, node.client() as client, trio.open_nursery() as nursery:
        seen: list[tuple[bytes, int]] = []

        async def picky(delivery: Delivery) -> None:
            seen.append((delivery.body, delivery.delivery_count))
            if delivery.body == b"bad":
                raise ValueError("secret " + delivery.body.decode())

        nursery.start_soon(client.serve, "q", picky)
        with caplog.at_level(logging.WARNING, "meshq.client"):
            await client.send("q", b"bad")
            await client.send("q", b"good")
            await trio.sleep(1)
        assert sorted(seen) == [(b"bad", 1), (b"bad", 2), (b"bad", 3), (b"good", 1)]
        assert (await client.queue("dead")).ready == 1
        # Three times the same is told once, with its type and its place, and without a word of the message.
        (record,) = [record for record in caplog.records if record.event == "handler_failed"]  # type: ignore[attr-defined]
        assert "ValueError in picky (test_settling_blocks.py:" in record.getMessage()
        assert "secret" not in caplog.text
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["ack", "nack", "reject", "nothing"])
async def test_the_warning_says_what_became_of_the_message(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async with lives() as node, node.client() as client, trio.open_nursery() as nursery:

        async def failing(delivery: Delivery) -> None:
            if delivery.body == b"first" and not delivery.redelivered:
                if how != "nothing":
                    await getattr(delivery, how)()
                raise ValueError

        with caplog.at_level(logging.WARNING, "meshq.client"):
            nursery.start_soon(client.serve, "q", failing)
            await client.send("q", b"first")
            await trio.sleep(1)
        (record,) = [record for record in caplog.records if record.event == "handler_failed"]  # type: ignore[attr-defined]
        said = "the message is given back" if how == "nothing" else "the handler had settled the message before"
        assert record.getMessage().endswith(f"; {said}")
        nursery.cancel_scope.cancel()


async def test_the_programs_own_function_is_told_of_an_exception_and_ends_the_worker_by_raising() -> None:
    async with lives() as node, node.client() as client:
        await client.send_many("q", [b"1", b"2"])
        told: list[tuple[bytes, Exception]] = []

        async def broken(delivery: Delivery) -> None:
            raise KeyError(delivery.body)

        def on_error(delivery: Delivery, error: Exception) -> None:
            told.append((delivery.body, error))
            if len(told) == 3:
                raise RuntimeError("enough") from error

        with pytest.raises(RuntimeError, match="enough") as caught:
            await client.serve("q", broken, on_error=on_error)
        assert [body for body, _ in told] == [b"1", b"2", b"1"]
        assert isinstance(caught.value.__cause__, KeyError)
        assert await counts(client) == (2, 0, 0, 0)


async def test_a_worker_returns_when_another_task_closes_the_client_and_fails_when_the_queue_is_deleted() -> None:
    async with lives() as node, node.client() as admin, trio.open_nursery() as nursery:
        await admin.create_queue("q")
        returned = trio.Event()

        async def serve(client: Client) -> None:
            async with client:
                await client.serve("q", Handled())
            returned.set()

        client = node.client()
        nursery.start_soon(serve, client)
        await trio.sleep(1)
        await client.close()
        await returned.wait()

        async def refused() -> None:
            async with node.client() as client:
                with pytest.raises(NotFoundError):
                    await client.serve("q", Handled())

        nursery.start_soon(refused)
        await trio.sleep(1)
        await admin.delete_queue("q")


async def test_a_filter_and_the_other_settings_of_a_consumer_are_those_of_its_worker() -> None:
    async with lives() as node, node.client() as client, trio.open_nursery() as nursery:
        for number in range(6):
            await client.send("q", b"%d" % number, properties={"even": number % 2 == 0})
        handled = Handled()
        handled.go.set()

        async def serve() -> None:
            await client.serve("q", handled, filter="even = TRUE", window=1, priority=3, exclusive=False)

        nursery.start_soon(serve)
        await trio.sleep(1)
        assert handled.done == [b"0", b"2", b"4"]
        assert await counts(client) == (3, 0, 3, 0)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("wrong", "allowed"),
    [
        ({"concurrency": 0}, "from 1"),
        ({"concurrency": True}, "from 1"),
        ({"on_error": 3}, "a function of a delivery and an exception"),
        ({"window": 0}, "from 1"),
    ],
)
async def test_a_worker_with_a_setting_that_is_not_allowed_does_not_begin(
    wrong: dict[str, object], allowed: str
) -> None:
    async with lives() as node, node.client() as client:
        with pytest.raises(SettingsError, match=allowed):
            await client.serve("q", Handled(), **wrong)  # type: ignore[arg-type]
        with pytest.raises(SettingsError, match="a function of a delivery"):
            await client.serve("q", 3)  # type: ignore[arg-type]


# -- messages of JSON


async def test_a_value_travels_as_json_in_one_line_each_way() -> None:
    order = {"item": "Schirm", "count": 3, "price": 12.5, "tags": ["ü", None, True]}
    async with lives() as node, node.client() as client:
        await client.send("q", Message.json(order, properties={"region": "emea"}, priority=7))
        async with one(client) as delivery, delivery:
            assert delivery.json() == order
            assert delivery.content_type == "application/json"
            assert (delivery.properties, delivery.priority) == ({"region": "emea"}, 7)


async def test_a_body_that_is_no_json_is_told_by_a_typed_error_that_does_not_show_it() -> None:
    wrong = [b"secret", b'{"a": secret}', b"\xff\xfe", b"NaN", b"[" * 100_000, b"", b"1" * 10_000]
    async with lives() as node, node.client() as client:
        await client.send_many("q", wrong)
        async with client.consumer("q") as consumer:
            for _ in wrong:
                async with await consumer.receive(timeout=5) as delivery:  # type: ignore[union-attr]
                    with pytest.raises(BodyFormatError) as caught:
                        delivery.json()
                    assert "secret" not in str(caught.value)
                    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "value=<object>"),
        (float("nan"), "value=<float>"),
        ({1: {2, 3}}, "value[1]=<set>"),
        ({"a": 1, "b": [0, {"c": b"secret"}]}, "value['b'][1]['c']=<bytes>"),
        ({(1, 2): 3}, "value=<dict>"),
        ("\ud800", "value=<str>"),
    ],
)
def test_what_json_cannot_hold_is_no_body_and_it_is_told_where_it_is(value: object, said: str) -> None:
    with pytest.raises(SettingsError, match=f"^{re.escape(said)} is not allowed") as caught:
        Message.json(value)
    assert caught.value.__context__ is None


def test_a_value_in_a_circle_is_no_body() -> None:
    circle: list[object] = []
    circle.append(circle)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (circle, {"a": circle}, deep):
        with pytest.raises(SettingsError, match="without circles"):
            Message.json(value)


# -- a Message in place of a body

WHOLE = Message(
    b"body",
    properties={"n": 1},
    durable=False,
    priority=2,
    ttl=100,
    duplicate_id="d",
    correlation_id="c",
    reply_to="answers",
    group="g",
    content_type="text/plain",
)


@pytest.mark.parametrize("how", ["client", "producer", "transaction"])
async def test_a_message_is_sent_as_it_says_wherever_a_body_is(how: str) -> None:
    async with lives() as node, node.client() as client:
        if how == "client":
            await client.send("q", WHOLE)
        elif how == "producer":
            async with client.producer("q") as producer:
                await producer.send(WHOLE)
        else:
            async with client.transaction() as tx:
                await tx.send("q", WHOLE)
        async with one(client) as got, got:
            assert (got.body, got.properties, got.durable, got.priority) == (b"body", {"n": 1}, False, 2)
            assert (got.duplicate_id, got.correlation_id, got.reply_to) == (b"d", "c", "answers")
            assert (got.group, got.content_type) == ("g", "text/plain")
            assert got.expiration is not None


async def test_a_large_message_is_sent_as_it_says_too() -> None:
    async with lives() as node, node.client() as client:
        await client.send("q", Message(bytes(300_000), properties={"n": 1}, priority=9))
        async with one(client) as got, got:
            assert (got.size, got.properties, got.priority) == (300_000, {"n": 1}, 9)


@pytest.mark.parametrize("beside", [{"durable": False}, {"priority": 9}, {"properties": {}}, {"ttl": 3.0}])
async def test_keywords_beside_a_message_are_refused_by_name(beside: dict[str, object]) -> None:
    (name,) = beside
    async with lives() as node, node.client() as client, client.producer("q") as producer:
        for send in (client.send, producer.send):
            with pytest.raises(SettingsError, match=f"{name}=.*left out beside a Message"):
                await (send("q", WHOLE, **beside) if send == client.send else send(WHOLE, **beside))  # type: ignore[call-arg,arg-type]
        async with client.transaction() as tx:
            with pytest.raises(SettingsError, match=f"{name}="):
                await tx.send("q", WHOLE, **beside)  # type: ignore[arg-type]


async def test_a_worker_with_a_filter_that_is_no_condition_is_told_where() -> None:
    async with lives() as node, node.client() as client:
        with pytest.raises(FilterError, match="column"):
            await client.serve("q", Handled(), filter="even = = TRUE")
