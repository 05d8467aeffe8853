"""A node serves only with the newest store of its node id, and an interrupted claim begins anew."""

from __future__ import annotations

import hashlib
from typing import Any

import attrs
import pytest

from meshq import RefusedError, SettingsError
from meshq.abc import QuorumRecord
from meshq.ha.quorum import Claim, NoClaim, claim, decide_claim, node_id_of, with_replica, without_replica
from meshq.testing import MemoryQuorum

ID = b"i" * 16


@attrs.define
class Peer:
    """A node with a store that has a counter; ``fail_at``: the step at which it is gone, from 1."""

    quorum: MemoryQuorum
    name: str
    activation: int = 0
    fail_at: int = 0
    lives: int = 0

    async def claim(self) -> QuorumRecord | NoClaim | None:
        self.lives += 1
        instance = hashlib.sha256(f"{self.name} {self.lives}".encode()).digest()[:16]
        async with self.quorum.session(ID, instance) as session:
            real, step = session.compare_and_set, 0

            def passed() -> None:
                nonlocal step
                step += 1
                if step == self.fail_at:
                    self.fail_at = 0
                    raise InterruptedError

            async def compare_and_set(expected: QuorumRecord, new: QuorumRecord) -> bool:
                passed()
                return await real(expected, new)

            async def store(activation: int) -> None:
                passed()
                self.activation = activation

            session.compare_and_set = compare_and_set  # type: ignore[method-assign]
            try:
                return await claim(session, name=self.name, activation=self.activation, store=store)
            except InterruptedError:
                return None

    @property
    def record(self) -> QuorumRecord:
        return self.quorum.record(ID)


async def test_the_counter_grows_as_the_contract_tells() -> None:
    """Alone 1; in sync both 1; the backup alone 2; restarted 3; the other one as its replica 3; that one alone 4."""
    quorum = MemoryQuorum()
    primary, backup = Peer(quorum, "primary"), Peer(quorum, "backup")
    await primary.claim()
    assert (primary.activation, primary.record.in_sync) == (1, ("primary",))
    quorum.place(ID).record = with_replica(primary.record, "backup")
    backup.activation = primary.record.sequence
    assert (primary.activation, backup.activation) == (1, 1)
    await backup.claim()
    assert (backup.activation, backup.record.in_sync, backup.record.epoch) == (2, ("backup",), 2)
    await backup.claim()
    assert backup.activation == 3
    quorum.place(ID).record = with_replica(backup.record, "primary")
    primary.activation = backup.record.sequence
    assert primary.activation == 3
    await primary.claim()
    assert (primary.activation, primary.record.sequence, primary.record.claimed) == (4, 4, 4)
    assert (primary.record.epoch, primary.record.holder) == (4, "primary")


async def test_a_stale_store_never_starts_and_the_newest_one_does() -> None:
    """Stop the loser, advance the winner, stop the winner, start the loser: it waits; start the winner: it serves."""
    quorum = MemoryQuorum()
    winner, loser = Peer(quorum, "winner"), Peer(quorum, "loser")
    await winner.claim()
    quorum.place(ID).record = with_replica(winner.record, "loser")
    loser.activation = 1
    # The winner goes on without the loser.
    steps = without_replica(winner.record, "loser")
    quorum.place(ID).record, winner.activation = steps.done, steps.activation
    refused = await loser.claim()
    assert isinstance(refused, NoClaim)
    assert refused.reason == "not_in_sync"
    assert "winner" in refused.text
    served = await winner.claim()
    assert isinstance(served, QuorumRecord)
    assert served.holder == "winner"


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("heals", ["primary", "backup"])
async def test_an_interrupted_claim_begins_anew_with_a_counter_that_no_disk_has(step: int, heals: str) -> None:
    quorum = MemoryQuorum()
    nodes = {name: Peer(quorum, name, activation=1) for name in ("primary", "backup")}
    start = QuorumRecord(epoch=1, sequence=1, claimed=1, in_sync=("primary", "backup"), holder="primary")
    quorum.place(ID).record = start
    nodes["primary"].fail_at = step
    assert await nodes["primary"].claim() is None
    assert quorum.record(ID).sequence == 1
    served = await nodes[heals].claim()
    assert isinstance(served, QuorumRecord)
    # At the first step nothing was begun.
    counter = 2 if step == 1 else 3
    assert (served.sequence, served.claimed, nodes[heals].activation) == (counter, counter, counter)
    assert (served.in_sync, served.holder) == ((heals,), heals)
    # And the other one has an older copy, or one that does not count.
    (other,) = [one for name, one in nodes.items() if name != heals]
    assert isinstance(await other.claim(), NoClaim)


@pytest.mark.parametrize("step", [1, 2, 3])
async def test_a_machine_that_was_replaced_under_its_name_never_counts_as_newest_when_it_comes_back(step: int) -> None:
    """A claim is interrupted, the other node serves, and a new machine of the first one's name is in sync."""
    quorum = MemoryQuorum()
    old, other = Peer(quorum, "a", activation=1, fail_at=step), Peer(quorum, "b", activation=1)
    quorum.place(ID).record = QuorumRecord(epoch=1, sequence=1, claimed=1, in_sync=("a", "b"), holder="a")
    assert await old.claim() is None
    served = await other.claim()
    assert isinstance(served, QuorumRecord)
    quorum.place(ID).record = with_replica(served, "a")
    found = await old.claim()
    assert isinstance(found, NoClaim) and found.reason == "stale"


@pytest.mark.parametrize("step", [1, 2])
async def test_a_machine_that_was_leaving_its_replica_out_never_counts_beside_the_one_that_served_then(
    step: int,
) -> None:
    quorum, old = MemoryQuorum(), Peer(MemoryQuorum(), "a", activation=1)
    record = QuorumRecord(epoch=1, sequence=1, claimed=1, in_sync=("a", "b"), holder="a")
    steps = without_replica(record, "b")
    quorum.place(ID).record = steps.begun
    old.activation = steps.activation if step == 2 else 1
    served = await Peer(quorum, "b", activation=1).claim()
    assert isinstance(served, QuorumRecord)
    found = decide_claim(with_replica(served, "a"), name="a", activation=old.activation)
    assert isinstance(found, NoClaim) and found.reason == "stale"


@pytest.mark.parametrize("step", [1, 2, 3])
async def test_an_interrupted_first_claim_begins_anew(step: int) -> None:
    quorum = MemoryQuorum()
    peer = Peer(quorum, "a", fail_at=step)
    assert await peer.claim() is None
    served = await peer.claim()
    assert isinstance(served, QuorumRecord)
    assert served.sequence == peer.activation == (1 if step == 1 else 2)


RECORD = QuorumRecord(epoch=9, sequence=5, claimed=5, in_sync=("a", "b"), holder="a")


@pytest.mark.parametrize(
    ("record", "name", "activation", "reason"),
    [
        *[(RECORD, "a", counter, "stale") for counter in range(5)],
        *[(attrs.evolve(RECORD, claimed=6), "b", counter, "stale") for counter in range(5)],
        (RECORD, "a", 6, "unknown"),
        (attrs.evolve(RECORD, claimed=6), "a", 7, "unknown"),
        *[(RECORD, "c", counter, "not_in_sync") for counter in (4, 5, 6)],
        (QuorumRecord(), "a", 1, "unknown"),
    ],
    ids=str,
)
def test_a_store_with_another_counter_never_starts_by_itself(
    record: QuorumRecord, name: str, activation: int, reason: str
) -> None:
    refused = decide_claim(record, name=name, activation=activation)
    assert isinstance(refused, NoClaim)
    assert refused.reason == reason
    assert name in refused.text


@pytest.mark.parametrize("activation", [5, 6])
def test_a_member_with_either_counter_of_an_interrupted_claim_may_claim(activation: int) -> None:
    steps = decide_claim(attrs.evolve(RECORD, claimed=6), name="b", activation=activation)
    assert isinstance(steps, Claim)
    assert (steps.begun, steps.activation) == (attrs.evolve(RECORD, claimed=7), 7)
    assert steps.done == QuorumRecord(epoch=10, sequence=7, claimed=7, in_sync=("b",), holder="b")


@pytest.mark.parametrize("record", [QuorumRecord(), RECORD, attrs.evolve(RECORD, claimed=9)], ids=str)
def test_an_order_of_an_operator_counts_until_the_counter_of_the_quorum_moves(record: QuorumRecord) -> None:
    about: dict[str, Any] = {"name": "c", "activation": 7, "epoch": 1_009}
    steps = decide_claim(record, against=record.sequence, **about)
    assert isinstance(steps, Claim) and (steps.done.epoch, steps.done.in_sync) == (1_009, ("c",))
    # Its own claim that was interrupted moves nothing.
    again = decide_claim(steps.begun, against=record.sequence, **about)
    assert isinstance(again, Claim) and again.activation == steps.activation + 1 == max(7, record.claimed) + 2
    refused = decide_claim(steps.done, against=record.sequence, **about)
    assert isinstance(refused, NoClaim) and refused.reason == "void"
    assert f"was {record.sequence} when it was found, and is {steps.activation}" in refused.text


async def test_a_lock_that_is_held_lets_nobody_claim() -> None:
    """F30: the provider says that a node serves, and the other one stays passive, also with the newest store."""
    quorum = MemoryQuorum()
    quorum.place(ID).record = attrs.evolve(RECORD, in_sync=("a", "b"))
    async with quorum.session(ID, b"x" * 16) as holder:
        assert await holder.acquire()
        assert await Peer(quorum, "b", activation=5).claim() is None
        assert quorum.record(ID) == RECORD
    assert isinstance(await Peer(quorum, "b", activation=5).claim(), QuorumRecord)


async def test_a_node_that_may_not_serve_gives_the_lock_back() -> None:
    quorum = MemoryQuorum()
    quorum.place(ID).record = RECORD
    async with quorum.session(ID, b"x" * 16) as stale:
        assert isinstance(await claim(stale, name="a", activation=3, store=_nothing), NoClaim)
        assert stale.held_until == 0.0
        assert isinstance(await Peer(quorum, "b", activation=5).claim(), QuorumRecord)


async def test_a_claim_whose_record_was_changed_is_refused() -> None:
    quorum = MemoryQuorum()
    async with quorum.session(ID, b"x" * 16) as session:

        async def change(activation: int) -> None:
            quorum.place(ID).record = QuorumRecord(epoch=77)

        with pytest.raises(RefusedError, match="changed by another node"):
            await claim(session, name="a", activation=0, store=change)
    assert quorum.record(ID) == QuorumRecord(epoch=77)


async def _nothing(activation: int) -> None:
    raise AssertionError("nothing is to be stored")


def test_a_replica_is_added_once_and_without_another_counter() -> None:
    assert with_replica(RECORD, "b") is RECORD
    added = with_replica(RECORD, "c")
    assert (added.in_sync, added.sequence, added.claimed) == (("a", "b", "c"), 5, 5)


def test_a_replica_that_is_dropped_raises_the_counter_once() -> None:
    steps = without_replica(RECORD, "b")
    assert steps.begun == attrs.evolve(RECORD, claimed=6)
    assert steps.done == attrs.evolve(RECORD, claimed=6, sequence=6, in_sync=("a",))


def test_peers_with_one_coordination_id_share_a_node_id_of_sixteen_bytes() -> None:
    """F58."""
    node_id = node_id_of("peer-journal-001")
    assert node_id == hashlib.sha256(b"meshq coordination\0peer-journal-001").digest()[:16]
    assert node_id.hex() == node_id_of("peer-journal-001").hex()
    assert len({node_id_of(f"peer-journal-{index:03}") for index in range(100)} | {node_id}) == 100


@pytest.mark.parametrize("value", ["", "x" * 251, None, 7, b"peer", "\ud800"], ids=ascii)
def test_a_coordination_id_that_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises(SettingsError, match="coordination_id"):
        node_id_of(value)
