"""The claim of a store that may be old: what it knows, and the next start, which asks nobody."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio

from meshq import ReplicationBackup, ReplicationPrimary
from meshq.__main__ import main
from meshq.env import real_env
from meshq.ha import MARK_S, StoreClaim, StoreFacts, doubts
from meshq.ha._shared_directory import SharedDirectory
from meshq.ha._store_claim_plan import CLAIM_EPOCHS, ended_mark
from meshq.ha.replication import NodeDirectory
from meshq.ha.replication._quorum_activation import QuorumActivation
from meshq.ha.replication._standing_format import Standing
from meshq.testing import MemoryQuorum
from tests.ha.provided import SESSION_S, active, pairs
from tests.ha.replicated import machines

FACTS = StoreFacts(directory="/a", kind="replicated", node_id="11", epoch=5, activation=3)


@pytest.mark.parametrize(
    ("own", "peers", "text"),
    [
        ({}, [{"epoch": 4}], None),
        ({}, [{"acted": False}], None),
        ({"acted": False}, [{"acted": False, "in_sync": False}], None),
        ({"kind": "shared"}, [], None),
        ({}, [], "a replica may have taken over since"),
        ({"acted": False}, [], "the node that served may have gone on alone"),
        ({"acted": False}, [{}], "/b is newer: epoch 5, it served last"),
        ({}, [{"epoch": 6, "acted": False}], "/b is newer: epoch 6, it followed, in sync"),
        ({"named": 7}, [{"epoch": 4}], "another node has served in epoch 7"),
        ({"acted": False, "in_sync": False}, [{"epoch": 4}], "it was not in sync when"),
        ({"acted": False, "in_sync": False}, [{"acted": False, "in_sync": False}], "neither is known to be whole"),
    ],
)
def test_a_store_says_whether_a_newer_copy_is_possible(
    own: dict[str, object], peers: list[dict[str, object]], text: str | None
) -> None:
    """F18."""
    facts = attrs.evolve(FACTS, **own)  # type: ignore[arg-type]
    found = doubts(facts, [attrs.evolve(FACTS, directory="/b", **peer) for peer in peers])  # type: ignore[arg-type]
    assert (found == ()) if text is None else any(text in one for one in found)


def replicated(place: Path, standing: Standing) -> NodeDirectory:
    """A directory in which a node has replicated, and is stopped."""
    directory = NodeDirectory(real_env().disk, str(place))
    directory.enter()
    directory.remember(standing)
    directory.leave()
    return directory


def test_the_command_says_what_it_knows_and_marks_the_store_only_if_it_is_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F18."""
    standing = Standing(epoch=5, activation=3, acted=True, members=("a",), partner="b")
    own = replicated(tmp_path / "a", standing)
    peer = replicated(tmp_path / "b", Standing(epoch=5, activation=3, in_sync=True))
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert main(["store", "claim", a]) == 2
    text = capsys.readouterr().out
    first, second, *_ = text.splitlines()
    assert first == f"{a}: replicated, node id none yet"
    assert second == "  role primary, epoch 5, activation 3, it served last"
    assert "last durable position 0, written at" in text and "in sync a, partner b" in text
    assert "a newer copy is possible: a replica may have taken over since" in text
    assert main(["store", "claim", a, "--peer", b]) == 0
    assert "no other copy is newer, of those that were given" in capsys.readouterr().out
    assert main(["store", "claim", b, "--peer", a]) == 2
    assert f"a newer copy is possible: {a} is newer: epoch 5, it served last" in capsys.readouterr().out
    assert (own.standing(), peer.standing().claimed) == (standing, False)

    running = NodeDirectory(real_env().disk, b)
    running.enter()
    assert main(["store", "claim", b, "--yes"]) == 1
    assert "is open: stop its node first" in capsys.readouterr().err
    assert not peer.standing().claimed
    running.leave()
    assert main(["store", "claim", b, "--yes"]) == 0
    assert "with a quorum provider the mark is good for 3600 s" in capsys.readouterr().out
    found = peer.standing()
    assert found == Standing(epoch=5, activation=3, in_sync=True, claimed=True, marked_ms=found.marked_ms)
    assert 0 <= real_env().wall.now_ms() - found.marked_ms < 60_000
    assert main(["store", "claim", str(tmp_path / "nothing")]) == 1
    assert "is the store of no pair" in capsys.readouterr().err


def test_a_shared_store_that_is_claimed_begins_a_thousand_epochs_later_whatever_its_last_owner_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = SharedDirectory(real_env().disk, str(tmp_path / "s"))
    lock = shared.try_lock()
    assert lock is not None
    epoch = shared.begin()
    shared.mark_stopped(epoch)
    assert main(["store", "claim", shared.root, "--yes"]) == 1
    assert "is open: stop its node first" in capsys.readouterr().err
    lock.close()
    assert shared.look().stopped
    assert main(["store", "claim", shared.root]) == 0
    assert shared.look().stopped
    assert main(["store", "claim", shared.root, "--yes"]) == 0
    assert StoreClaim(real_env().disk, shared.root).look().claimed and not shared.look().stopped
    assert [shared.begin().number, shared.begin().number] == [1_001, 1_002]
    other = replicated(tmp_path / "r", Standing(epoch=1))
    assert main(["store", "claim", shared.root, "--peer", other.root]) == 1
    assert "is no other copy of this store" in capsys.readouterr().err


async def test_a_replica_that_is_claimed_serves_alone_with_everything_it_has_and_is_newer_than_any_other() -> None:
    """F18: a backup whose primary is lost, and that was not known to be in sync, is made to serve once."""
    async with machines() as (world, nursery):
        first, second = await world.pair(nursery)
        async with world.client() as client:
            await client.send("orders", b"42 umbrellas")
        epoch = first.ha.epoch
        await world.crash(second)
        await world.crash(first)
        claim = StoreClaim(world.disks["b"].mount(), "/data")
        facts = claim.look()
        assert (facts.epoch, facts.acted, facts.backup) == (epoch, False, True)
        assert facts.node_id and doubts(facts, []) and claim.position()
        claim.mark(1)
        alone = await world.start(nursery, world.broker("b", ReplicationBackup()))
        await alone.ha.wait_for(phase="active", timeout=60)
        assert alone.ha.epoch == epoch + CLAIM_EPOCHS
        async with world.client_of("b") as client:
            assert (await client.queue("orders")).ready == 1
        served = claim.look()
        assert (served.activation, served.acted, served.claimed) == (facts.activation + 1, True, False)
        # Whoever comes back follows it.
        other = await world.start(
            nursery, world.broker("a", ReplicationPrimary(check_for_live_server=True, wait_for_activation=False))
        )
        await other.ha.wait_for(phase="in_sync", timeout=60)
        assert alone.ha.phase == "active"


@pytest.mark.parametrize("role", ["a", "b"])
async def test_a_store_that_is_claimed_serves_with_the_lock_whatever_the_record_of_its_quorum_says(role: str) -> None:
    """F18: the newest copy is lost, and an older one is made to serve, once no other node has the lock."""
    async with pairs() as pair:
        first, second = await pair.both()
        await pair.kill(first)
        await active(second)
        policy = pair.first if role == "a" else pair.second
        if role == "b":
            # The one that has followed again is made to serve, and the quorum has lost its memory.
            first = await pair.start("a", pair.first())
            await pair.in_sync(second)
            await pair.ground.crash(first)
            await pair.ground.crash(second)
            pair.quorum = MemoryQuorum(session=SESSION_S)
        disk = pair.ground.disks[role].mount()
        before = NodeDirectory(disk, "/data").standing()
        StoreClaim(disk, "/data").mark(real_env().wall.now_ms())
        claimed = await pair.start(role, policy())
        if role == "a":
            await trio.sleep(5)
            assert claimed.state == "waiting" and "another node has the lock: stop it" in claimed.ha.last_error
            epoch = second.ha.epoch
            await pair.ground.crash(second)
            assert before.epoch < epoch
        await active(claimed)
        record = pair.record
        assert claimed.ha.epoch == record.epoch == before.epoch + CLAIM_EPOCHS
        assert record.sequence == record.claimed > before.activation and record.in_sync == (role,)
        found = NodeDirectory(disk, "/data").standing()
        assert (found.claimed, found.activation, found.epoch) == (False, record.sequence, record.epoch)
        # The other one has an older copy now, and follows.
        other = "b" if role == "a" else "a"
        await pair.start(other, (pair.second if role == "a" else pair.first)())
        await pair.in_sync(claimed)


@pytest.mark.parametrize(("age_s", "void"), [(0, False), (3_600, False), (3_601, True), (-3_601, True)])
def test_a_mark_is_good_for_an_hour_by_whatever_clock(age_s: float, void: bool) -> None:
    text = ended_mark(age_s)
    assert text == ("the mark of `meshq store claim` is void: it is good for 3600 s, and is 3601 s old" if void else "")


@pytest.mark.parametrize("end", ["time", "counter"])
async def test_the_mark_of_a_claimed_store_has_an_end_and_the_node_says_so_and_follows(
    end: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with pairs() as pair:
        first, second = await pair.both()
        await pair.kill(first)
        await active(second)
        directory = NodeDirectory(pair.ground.disks["a"].mount(), "/data")
        old_ms = int((MARK_S + 1) * 1000) if end == "time" else 0
        StoreClaim(pair.ground.disks["a"].mount(), "/data").mark(real_env().wall.now_ms() - old_ms)
        first = await pair.start("a", pair.first())
        if end == "counter":
            await trio.sleep(2)
            # The quorum had 2 when the node looked; the one that serves begins another term.
            assert directory.standing().against == 2 and "stop it" in first.ha.last_error
            await pair.ground.crash(second)
            pair.quorum.place(pair.node_id).record = attrs.evolve(pair.record, sequence=3, claimed=3)
            behind = NodeDirectory(pair.ground.disks["b"].mount(), "/data")
            behind.remember(attrs.evolve(behind.standing(), activation=3))
            await trio.sleep(2)
            assert not directory.standing().claimed and first.state == "waiting"
            second = await pair.start("b", pair.second())
            await active(second)
        await first.ha.wait_for(phase="in_sync", timeout=60)
        assert not directory.standing().claimed and pair.record.holder == "b"
        assert "the mark of `meshq store claim` is void" in caplog.text


async def test_a_copy_clears_the_mark_of_a_store_that_was_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pairs() as pair:
        _, second = await pair.both()
        await pair.ground.crash(second)
        directory = NodeDirectory(pair.ground.disks["b"].mount(), "/data")
        directory.remember(attrs.evolve(directory.standing(), claimed=True))
        # As where nothing is here that could serve.
        monkeypatch.setattr(QuorumActivation, "_ordered", False)
        second = await pair.start("b", pair.second())
        await second.ha.wait_for(phase="in_sync", timeout=60)
        assert not directory.standing().claimed
