"""Receiving and settling, over every face."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import AddressSettings, BusyError, ClosedError, NotFoundError, RefusedError, StaleDeliveryError, UsageError
from tests.real.faces.kit import WAIT_S, Face, promise, received


@promise
async def test_messages_are_acknowledged_given_back_and_rejected_one_by_one(face: Face) -> None:
    settings = {"q": AddressSettings(dead_letter_address="dead")}
    async with face.clients(address_settings=settings) as (sender, receiver):
        for number in range(9):
            await sender.send("q", b"%d" % number, reply_to="answers")
        async with receiver.consumer("q") as consumer:
            seen = []
            async for delivery in consumer:
                await delivery.reply(b"re: " + delivery.body)
                seen.append((delivery.body, delivery.delivery_count, delivery.redelivered))
                fate = int(delivery.body) % 3
                if fate == 1 and not delivery.redelivered:
                    await delivery.nack()
                elif fate == 2:
                    await delivery.reject()
                else:
                    await delivery.ack()
                if len(seen) == 12:
                    break
            await receiver.flush()
        assert sorted(seen) == sorted(
            [(b"%d" % n, 1, False) for n in range(9)] + [(b"%d" % n, 2, True) for n in range(9) if n % 3 == 1]
        )
        statistics = await sender.queue("q")
        assert (statistics.acknowledged, statistics.rejected, statistics.ready) == (6, 3, 0)
        assert await sender.purge_queue("answers") == 12
        async with receiver.consumer("dead", ack="auto") as consumer:
            dead = await received(consumer)
            assert dead.body == b"2" and dead.origin.queue == "q" and dead.origin.reason == "rejected"


@promise
async def test_batches_are_received_and_settled_together(face: Face) -> None:
    async with face.clients() as (sender, receiver):
        await sender.send_many("q", [b"%d" % number for number in range(30)])
        async with receiver.consumer("q") as consumer:
            await face.until(lambda: consumer.statistics().ready == 30)
            batch = await consumer.receive_many(30, timeout=WAIT_S)
            assert [delivery.body for delivery in batch] == [b"%d" % number for number in range(30)]
            await consumer.ack(*batch[:10])
            await consumer.nack(*batch[10:20])
            await consumer.reject(*batch[20:])
            await consumer.ack(confirm=True)
            again = []
            while len(again) < 10:
                again += await consumer.receive_many(10, timeout=WAIT_S)
            assert [(one.body, one.delivery_count) for one in again] == [(b"%d" % n, 2) for n in range(10, 20)]
            await consumer.ack(*again, confirm=True)
            assert repr(consumer) == "<Consumer 'q' open ready=0>"
        statistics = await sender.queue("q")
        assert (statistics.acknowledged, statistics.rejected) == (20, 10)


@promise
async def test_what_was_only_prefetched_goes_back_unmarked_and_what_was_handed_over_marked(face: Face) -> None:
    async with face.clients() as (client, _):
        await client.send_many("q", [b"0", b"1", b"2", b"3", b"4"])
        async with client.consumer("q") as consumer:
            await (await received(consumer)).ack()
            await (await received(consumer)).nack()
            await received(consumer)
            assert consumer.statistics().received == 3
        assert (await client.queue("q")).ready == 4
        async with client.consumer("q") as consumer:
            again = [await received(consumer) for _ in range(4)]
            assert [(one.body, one.delivery_count) for one in again] == [(b"1", 2), (b"2", 2), (b"3", 1), (b"4", 1)]
            await consumer.ack(*again, confirm=True)


@pytest.mark.parametrize("taken", [1, 7, 300])
@promise
async def test_an_automatic_acknowledgement_is_of_what_was_handed_over_and_of_nothing_else(
    face: Face, taken: int
) -> None:
    async with face.clients() as (client, _):
        await client.send_many("q", [b"%d" % number for number in range(400)])
        async with client.consumer("q", ack="auto") as consumer:
            await received(consumer)
            while consumer.statistics().received < taken:
                await consumer.receive_many(taken - consumer.statistics().received, timeout=WAIT_S)
        statistics = await client.queue("q")
        assert (statistics.ready, statistics.delivering, statistics.acknowledged) == (400 - taken, 0, taken)
        async with client.consumer("q") as consumer:
            delivery = await received(consumer)
            assert (delivery.body, delivery.redelivered) == (b"%d" % taken, False)


@promise
async def test_an_automatic_acknowledgement_does_not_wait_for_the_next_call(face: Face) -> None:
    async with face.clients() as (client, other):
        await other.send_many("q", [b"1", b"2"])
        async with client.consumer("q", ack="auto") as consumer:
            await received(consumer)

            async def acknowledged() -> bool:
                return (await other.queue("q")).acknowledged == 1

            await face.until(acknowledged)
            assert (await other.queue("q")).delivering == 1


@promise
async def test_a_receive_returns_when_its_time_is_up(face: Face) -> None:
    async with face.clients() as (client, _), client.consumer("q") as consumer:
        assert await consumer.receive(timeout=0) is None
        assert await consumer.receive(timeout=0.02) is None
        assert await consumer.receive_many(5, timeout=0.02) == []


@promise
async def test_a_browse_shows_everything_and_takes_nothing(face: Face) -> None:
    async with face.clients() as (client, _):
        await client.send_many("q", [b"1", b"2", b"3"])
        for _ in range(2):
            async with client.consumer("q", browse=True) as consumer:
                seen = [delivery async for delivery in consumer]
                assert [delivery.body for delivery in seen] == [b"1", b"2", b"3"]
                assert await consumer.receive() is None
                assert await consumer.receive_many(3) == []
                with pytest.raises(UsageError):
                    await seen[0].ack()
        statistics = await client.queue("q")
        assert (statistics.ready, statistics.redelivered) == (3, 0)


@promise
async def test_a_filter_takes_some_and_an_exclusive_consumer_everything(face: Face) -> None:
    async with face.clients() as (client, other):
        for number in range(4):
            await client.send("q", b"%d" % number, properties={"n": number})
        async with client.consumer("q", filter="n > 1", ack="auto") as consumer:
            assert [(await received(consumer)).body for _ in range(2)] == [b"2", b"3"]
        async with (
            client.consumer("q", exclusive=True, ack="auto") as first,
            other.consumer("q", exclusive=True) as second,
        ):
            assert [(await received(first)).body for _ in range(2)] == [b"0", b"1"]
            assert await second.receive(timeout=0.02) is None


@promise
async def test_a_second_receiver_is_refused_and_a_closed_consumer_ends_the_iteration(face: Face) -> None:
    async with face.clients() as (client, other), client.consumer("q") as consumer:
        await other.send("q", b"1")
        seen: list[bytes] = []
        first = face.signal()

        async def work() -> None:
            async for delivery in consumer:
                seen.append(delivery.body)
                await delivery.ack()
                first.set()

        async def second() -> None:
            await first.wait()

            async def refused() -> bool:
                try:
                    return await consumer.receive(timeout=0) is not None
                except BusyError as error:
                    assert error.outcome == "not_done"
                    return True

            await face.until(refused)
            await consumer.close()
            await consumer.close()

        await face.together(work, second)
        assert seen == [b"1"]
        with pytest.raises(ClosedError):
            await consumer.receive()
        assert [delivery async for delivery in consumer] == []


@promise
async def test_a_consumer_whose_queue_is_deleted_says_so(face: Face) -> None:
    async with face.clients() as (client, other):
        await client.create_queue("q")
        begun = face.signal()

        async def consume() -> None:
            with pytest.raises(NotFoundError):
                async with client.consumer("q") as consumer:
                    begun.set()
                    await consumer.receive(timeout=WAIT_S)

        async def delete() -> None:
            await begun.wait()
            await other.delete_queue("q")

        await face.together(consume, delete)


@promise
async def test_the_end_of_a_block_settles_its_message(face: Face) -> None:
    async with face.clients() as (client, _):
        await client.send("q", b"1")
        async with client.consumer("q") as consumer:
            delivery = await received(consumer)
            with pytest.raises(ZeroDivisionError):
                async with delivery:
                    raise ZeroDivisionError
            delivery = await received(consumer)
            async with delivery:
                assert delivery.delivery_count == 2
                await delivery.nack()
            async with await received(consumer) as delivery:
                assert delivery.delivery_count == 3
            await client.flush()
            statistics = await client.queue("q")
            assert (statistics.ready, statistics.delivering, statistics.acknowledged) == (0, 0, 1)
        async with client.consumer("q", ack="auto") as consumer:
            await client.send("q", b"2")
            delivery = await received(consumer)
            with pytest.raises(UsageError, match="nothing to settle"):
                await delivery.__aenter__()


@promise
async def test_a_message_is_settled_once_and_only_while_its_consumer_is_open(face: Face) -> None:
    async with face.clients() as (client, _):
        await client.send_many("q", [b"1", b"2"])
        async with client.consumer("q") as consumer, client.consumer("other") as other:
            first, second = await received(consumer), await received(consumer)
            await first.ack()
            for again in (first.ack, first.nack, first.reject, lambda: first.ack(confirm=True)):
                with pytest.raises(UsageError, match="settled before"):
                    await again()
            with pytest.raises(UsageError):
                await other.ack(second)
        with pytest.raises(StaleDeliveryError) as caught:
            await second.ack()
        assert caught.value.outcome == "not_done"
        assert (await client.queue("q")).ready == 1


@promise
async def test_a_delivery_is_settled_by_any_of_several(face: Face) -> None:
    async with face.clients() as (client, other):
        await other.send_many("q", [b"%d" % number for number in range(100)])
        async with client.consumer("q") as consumer:
            batch: list[Any] = []
            while len(batch) < 100:
                batch += await consumer.receive_many(100, timeout=WAIT_S)
            read: list[tuple[int, bytes]] = []

            def settling(part: int) -> Any:
                async def settle() -> None:
                    for number in range(part, 100, 4):
                        read.append((number, batch[number].body))
                        await batch[number].ack()

                return settle

            await face.together(*map(settling, range(4)))
            await client.flush()
        assert sorted(read) == [(number, b"%d" % number) for number in range(100)]
        assert (await other.queue("q")).acknowledged == 100


@promise
async def test_a_refused_consumer_says_why(face: Face) -> None:
    async with face.clients() as (client, other):
        async with client.subscribe("news", name="alice"):
            with pytest.raises(RefusedError) as caught:
                async with other.subscribe("news", name="alice"):
                    pytest.fail("it was entered")
            assert caught.value.outcome == "not_done"
        with pytest.raises(UsageError):
            async with client.consumer("news"):
                pytest.fail("it was entered")
