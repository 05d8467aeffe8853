"""Stages and batches, over every face."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshq import (
    BatchCommit,
    NotFoundError,
    SettingsError,
    TransactionRolledBackError,
    UsageError,
    limits,
)
from tests.real.faces.kit import Face, promise


@pytest.mark.parametrize("durable", [True, False])
@promise
async def test_a_batch_of_two_writers_is_sent_whole_and_once(face: Face, tmp_path: Path, durable: bool) -> None:
    async with face.clients(data_dir=tmp_path / "hq" if durable else None) as (client, other):
        async with client.stage("nightly", 7, partition=1) as second:
            await second.send("out", b"c")
        async with other.stage("nightly", 7) as first:
            for body in (b"a", b"b"):
                await first.send("out", body, properties={"n": 1})
            assert first.state == "active" and first.stage_id is not None and "Stage" in repr(first)
        assert (first.state, second.state) == ("prepared", "prepared")
        assert first.stage_id and second.stage_id
        known = await client.stages("nightly")
        assert [(one.stage, one.batch, one.partition, one.state, one.messages) for one in known] == [
            (second.stage_id, 7, 1, "prepared", 1),
            (first.stage_id, 7, 0, "prepared", 2),
        ]
        assert 3_500 < known[0].expires_in <= 3_600 and await client.sinks() == []
        named = [second.stage_id, first.stage_id]
        done = await client.commit_batch("nightly", 7, named)
        assert done == BatchCommit(sink="nightly", batch=7, already=False, messages=3)
        async with client.consumer("out") as consumer:
            got = [await consumer.receive(timeout=5) for _ in range(3)]
            assert [one.body for one in got if one is not None] == [b"a", b"b", b"c"]
            again = await other.commit_batch("nightly", 7, named)
            assert again.already and again.messages == 0
            assert await consumer.receive(timeout=0.05) is None
        # A batch may take the place of what is there.
        await client.send_many("out", [b"old", b"older"])
        async with client.stage("nightly", 8) as third:
            await third.send("out", b"new")
        assert third.stage_id is not None
        await client.commit_batch("nightly", 8, [third.stage_id], purge="out")
        async with client.consumer("out") as consumer:
            only = await consumer.receive(timeout=5)
            assert only is not None and only.body == b"new" and await consumer.receive(timeout=0.05) is None
        (sink,) = await client.sinks()
        assert (sink.sink, sink.user, sink.batch, sink.placing, sink.stages) == ("nightly", "", 8, 0, 0)
        await client.delete_sink("nightly")
        with pytest.raises(NotFoundError, match="'nightly'"):
            await client.delete_sink("nightly")
        assert await client.sinks() == await client.stages() == []


@promise
async def test_a_part_that_fails_or_is_given_up_leaves_nothing(face: Face) -> None:
    async with face.clients() as (client, other):
        with pytest.raises(ZeroDivisionError):
            async with client.stage("s", 0) as part:
                await part.send("out", b"a")
                raise ZeroDivisionError
        assert part.state == "rolled back"
        async with client.stage("s", 0) as part:
            await part.send("out", b"b")
            await part.rollback()
        async with client.stage("s", 0, attempt=1) as part:
            await part.send("out", b"c")
            await part.prepare()
            with pytest.raises(UsageError, match="abandon_batch"):
                await part.rollback()
        assert part.stage_id is not None
        assert await other.abandon_batch("s", 0) == 1
        with pytest.raises(NotFoundError, match=f"no stages {part.stage_id} for batch 0"):
            await client.commit_batch("s", 0, [part.stage_id])
        assert (await client.commit_batch("s", 0, [])).messages == 0
        assert await client.stages() == []


@promise
async def test_a_stage_only_sends_and_says_what_is_not_allowed(face: Face) -> None:
    async with face.clients() as (client, _):
        await client.send("in", b"x")
        async with client.consumer("in") as consumer:
            message = await consumer.receive(timeout=5)
            assert message is not None
            async with client.stage("s", 0) as part:
                with pytest.raises(UsageError, match="only sends"):
                    await part.ack(message)
                with pytest.raises(UsageError, match="commit_batch"):
                    await part.commit()
        assert part.stage_id is not None
        for wrong in ("", "x" * 129, "a\0"):
            with pytest.raises(SettingsError, match="sink"):
                client.stage(wrong, 0)
            with pytest.raises(SettingsError, match="sink"):
                await client.commit_batch(wrong, 0, [])
        for name in ("batch", "partition", "attempt"):
            with pytest.raises(SettingsError, match=name):
                client.stage("s", **{"batch": 0, name: -1})
        with pytest.raises(SettingsError, match="timeout"):
            client.stage("s", 0, timeout=0.5)
        with pytest.raises(SettingsError, match=f"at most {limits.BATCH_STAGES_MAX}"):
            await client.commit_batch("s", 0, range(1, limits.BATCH_STAGES_MAX + 2))
        with pytest.raises(SettingsError, match="stage_id"):
            await client.commit_batch("s", 0, [0])
        async with client.stage("s", 1) as other:
            with pytest.raises(UsageError, match="is not prepared: it is open"):
                await client.commit_batch("s", 1, [other.stage_id or 0])
        with pytest.raises(UsageError, match="is of batch 0"):
            await client.commit_batch("s", 1, [part.stage_id])


@promise
async def test_a_stage_goes_with_its_session(face: Face, tmp_path: Path) -> None:
    async with face.clients(data_dir=tmp_path / "hq") as (client, other):
        async with client.stage("s", 0) as part:
            await part.send("out", b"a")
            await other.abandon_batch("s", 0)
            with pytest.raises(TransactionRolledBackError, match="write another attempt"):
                await part.prepare()
        assert part.state == "rolled back" and await other.stages() == []
