"""Cursors, over every face."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from meshq import (
    BusyError,
    ClosedError,
    CursorHeldError,
    CursorLag,
    CursorLostError,
    NotFoundError,
    RefusedError,
    SequenceHole,
    SettingsError,
    UsageError,
)
from tests.real.faces.kit import Face, promise


@pytest.mark.parametrize("durable", [True, False])
@promise
async def test_a_cursor_reads_again_what_it_has_not_acknowledged(face: Face, tmp_path: Path, durable: bool) -> None:
    async with face.clients(data_dir=tmp_path / "hq" if durable else None) as (client, other):
        await client.send_many("orders", [b"1", b"2", b"3", b"4"])
        async with client.cursor("orders", "audit", window=2) as cursor:
            assert (cursor.queue, cursor.name, cursor.position, cursor.processed) == ("orders", "audit", 1, 1)
            assert [message.body for message in await cursor.receive_many(4, timeout=5)][:1] == [b"1"]
            await cursor.seek("earliest")
            found = [await cursor.receive(timeout=5) for _ in range(4)]
            assert [message.body for message in found if message is not None] == [b"1", b"2", b"3", b"4"]
            assert await cursor.receive(timeout=0) is None and cursor.position == 5
            assert found[1] is not None
            await cursor.ack_to(found[1])
            await cursor.ack_to(2)
            assert cursor.processed == 3
            async with cursor.browse(3, 5) as again:
                assert [message.sequence async for message in again] == [3, 4]
            assert await cursor.high_mark() == 5
            assert await cursor.holes(1, 5) == [SequenceHole(1, 3, "acknowledged")]
            await cursor.pin(5)
            (known,) = await client.cursors("orders")
            assert (known.name, known.start, known.processed, known.pinned) == ("audit", 1, 3, 5)
            assert (known.high, known.lag, known.user) == (5, 2, "") and "session" in known.holder
            lag = await cursor.lag()
            assert isinstance(lag, CursorLag) and lag.messages == 2 and lag.bytes > 0 and lag.seconds >= 0
            with pytest.raises(NotFoundError, match=r"\[3, 5\), and 1 is acknowledged"):
                await cursor.seek(1)
            with pytest.raises(UsageError, match="not yet 9"):
                await cursor.seek(9)
            with pytest.raises(UsageError, match="high mark 5, not 9"):
                await cursor.ack_to(9)
            assert "'audit' of 'orders' open" in repr(cursor)
        epoch, fence = cursor.epoch, cursor.fence
        assert (await other.cursors())[0].holder == ""
        async with other.cursor("orders", "audit") as later:
            assert (later.position, later.epoch) == (3, epoch) and later.fence > fence
            seen = []
            async for message in later:
                seen.append(message.body)
                if len(seen) == 2:
                    await later.ack_to(message)
                    await later.release()
            assert seen == [b"3", b"4"]
            with pytest.raises(ClosedError):
                await later.ack_to(5)
        assert (await client.queue("orders")).ready == 0
        await client.delete_cursor("orders", "audit")
        assert await client.cursors() == []


@promise
async def test_a_queue_with_a_cursor_is_nobody_elses(face: Face) -> None:
    async with face.clients() as (client, other):
        await client.send("orders", b"1")
        async with client.cursor("orders", "audit", lease=0.2) as cursor:
            with pytest.raises(CursorHeldError, match="'audit'"):
                async with other.consumer("orders"):
                    pass
            with pytest.raises(CursorHeldError):
                await other.purge_queue("orders")
            with pytest.raises(CursorHeldError, match="nothing is overwritten"):
                await other.commit_batch("nightly", 1, [], purge="orders")
            with pytest.raises(CursorHeldError, match="who renews") as caught:
                async with other.cursor("orders", "audit", lease=0.2):
                    pass
            assert (caught.value.queue, caught.value.name) == ("orders", "audit") and "session" in caught.value.holder
            copied = pickle.loads(pickle.dumps(caught.value))
            assert (copied.holder, str(copied)) == (caught.value.holder, str(caught.value))
            with pytest.raises(CursorHeldError, match="one cursor at a time"):
                async with other.cursor("orders", "second"):
                    pass
            assert await cursor.receive(timeout=5) is not None
        with pytest.raises(CursorLostError) as lost:
            async with client.cursor("orders", "audit", lease=0.3) as cursor:
                await other.delete_cursor("orders", "audit")
                # The block is ended by the first renewal, at the latest.
                await cursor.ack_to(1)
        assert lost.value.reason == "deleted"


@promise
async def test_what_is_wrong_with_a_cursor_is_said(face: Face) -> None:
    async with face.clients() as (client, other):
        for wrong, named in (
            ({"start": "middle"}, "start"),
            ({"lease": 0}, "lease"),
            ({"lease": float("nan")}, "lease"),
            ({"lease": float("inf")}, "lease"),
            ({"max_lag": 0}, "max_lag"),
            ({"max_lag": 2**63}, "max_lag"),
            ({"window": 0}, "window"),
        ):
            with pytest.raises(SettingsError, match=f"{named}="):
                client.cursor("orders", "audit", **wrong)
        with pytest.raises(NotFoundError):
            async with client.cursor("orders", "audit"):
                pass
        await client.create_queue("orders")
        with pytest.raises(UsageError):
            await client.cursor("orders", "audit").receive(timeout=1)
        async with other.consumer("orders"):
            with pytest.raises(RefusedError, match="1 consumers"):
                async with client.cursor("orders", "audit"):
                    pass
        async with client.cursor("orders", "audit") as cursor:
            for call, wrong in (
                (cursor.ack_to, -1),
                (cursor.ack_to, 2**63),
                (cursor.pin, "x"),
                (cursor.seek, "middle"),
                (cursor.receive_many, 0),
                (cursor.receive, -1),
            ):
                with pytest.raises(SettingsError):
                    await call(wrong)
            with pytest.raises(SettingsError):
                cursor.browse(0, 1)
            for lo, hi in ((2, 1), (1, 2**63), (2**64, 2**64)):
                with pytest.raises(SettingsError):
                    cursor.browse(lo, hi)
                with pytest.raises(SettingsError):
                    await cursor.holes(lo, hi)
            with pytest.raises(UsageError, match="not yet"):
                await cursor.seek(2**64)
            with pytest.raises(UsageError):
                await cursor.holes(1, 5)
            with pytest.raises(UsageError):
                async with cursor.browse(1, 5):
                    pass
            for call in (cursor.pin, cursor.ack_to):
                with pytest.raises(UsageError):
                    await call(5)
            with pytest.raises(UsageError):
                await cursor.__aenter__()
        with pytest.raises(UsageError):
            client.cursor("orders", "audit").browse(1, 1)


@promise
async def test_what_is_not_there_or_not_free_is_said(face: Face) -> None:
    async with face.clients() as (client, other):
        await client.create_queue("orders")
        with pytest.raises(NotFoundError):
            await client.cursors("nothing")
        with pytest.raises(NotFoundError):
            await client.delete_cursor("orders", "other")
        async with client.cursor("orders", "audit") as cursor:
            await other.delete_cursor("orders", "audit")
            with pytest.raises(NotFoundError):
                await cursor.lag()
        tx = client.transaction(b"order-7")
        await client.send("orders", b"1")
        async with client.consumer("orders") as consumer, tx:
            delivery = await consumer.receive(timeout=5)
            await tx.ack(delivery)
            await tx.prepare()
        with pytest.raises(BusyError):
            async with client.cursor("orders", "audit"):
                pass
        await client.rollback(b"order-7")
