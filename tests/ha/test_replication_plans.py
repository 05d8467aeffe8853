"""What decides in replication, without a clock, a disk or a link."""

from __future__ import annotations

import math
import zlib
from typing import Any

import attrs
import pytest

from meshq.abc import StoredBatch, StoredSegment
from meshq.errors import DamagedError, RemoteProtocolError, UsageError
from meshq.ha.replication._catch_up_plan import (
    NEARLY_RECORDS,
    ROUNDS_MAX,
    CatchUp,
    SyncLeft,
    check_dense,
    tail_segments,
    within,
)
from meshq.ha.replication._replica_machine import FOLLOWING_TRANSITIONS, Following
from meshq.ha.replication._replicator_machine import REPLICA_TRANSITIONS, ReplicationBounds, Replicator
from meshq.ha.replication._saved_stores_plan import Moves, plan_moves, saved_number, to_remove
from meshq.ha.replication._standing_format import Standing, decode_standing, encode_standing, forgotten
from meshq.ha.replication.meeting._admission_plan import Admission
from meshq.ha.replication.meeting._meeting_plan import Standpoint, may_start
from meshq.ids import Position
from meshq.wire import Replicate

BOUNDS = ReplicationBounds(sync_s=30.0, slow_s=5.0)


def in_sync(last: int = 10) -> Replicator:
    """A primary with a replica that has everything."""
    replicator = Replicator(last, BOUNDS)
    replicator.accept()
    assert replicator.join(0.0) == last
    assert replicator.heard(last, 0.0) and replicator.in_sync
    return replicator


# -- the primary


def test_without_a_replica_and_while_one_is_copying_everything_that_was_placed_is_durable() -> None:
    replicator = Replicator(10, BOUNDS)
    replicator.place(12, 0.0)
    assert (replicator.durable, replicator.state, replicator.deadline) == (12, "none", math.inf)
    replicator.accept()
    replicator.place(15, 0.0)
    assert (replicator.durable, replicator.state, replicator.waits, replicator.deadline) == (
        15,
        "copying",
        False,
        math.inf,
    )


def test_from_the_moment_at_which_a_replica_joins_confirms_wait_for_it() -> None:
    replicator = Replicator(10, BOUNDS)
    replicator.accept()
    replicator.place(20, 0.0)
    assert replicator.join(1.0) == 20
    replicator.place(25, 2.0)
    # What was durable before stays so.
    assert (replicator.durable, replicator.state, replicator.in_sync) == (20, "joining", False)
    assert not replicator.heard(19, 3.0) and replicator.durable == 20 and replicator.behind == 6
    assert replicator.heard(22, 4.0) and replicator.in_sync
    assert replicator.durable == 22
    assert not replicator.heard(25, 5.0) and replicator.durable == 25 and replicator.behind == 0


def test_in_sync_is_only_who_has_all_that_was_there_when_it_joined() -> None:
    replicator = Replicator(10, BOUNDS)
    replicator.accept()
    replicator.place(20, 0.0)
    replicator.join(0.0)
    assert [replicator.heard(position, 0.0) for position in (10, 19)] == [False, False]
    assert not replicator.in_sync
    assert replicator.heard(20, 0.0) and replicator.in_sync


def test_a_replica_that_does_not_come_to_be_in_sync_is_dropped_after_the_time_of_a_sync() -> None:
    replicator = Replicator(10, BOUNDS)
    replicator.accept()
    replicator.place(20, 0.0)
    replicator.join(100.0)
    for position in range(11, 20):
        replicator.heard(position, 100.0 + position)
    # Progress gives it no more time: the traffic waits.
    assert replicator.deadline == 130.0
    assert (replicator.expired(129.9), replicator.expired(130.0)) == ("", "sync_timeout")


def test_a_replica_in_sync_is_slow_when_nothing_comes_back_for_a_while() -> None:
    replicator = in_sync()
    assert replicator.expired(1e9) == ""
    replicator.place(11, 100.0)
    replicator.place(12, 104.0)
    assert (replicator.deadline, replicator.expired(104.9)) == (105.0, "")
    replicator.heard(11, 104.9)
    assert replicator.expired(109.8) == "" and replicator.expired(109.9) == "slow"
    replicator.progressed(109.8, 11)
    assert replicator.expired(114.7) == ""
    replicator.heard(12, 114.7)
    assert replicator.deadline == math.inf


def test_a_replica_that_writes_large_bodies_while_its_journal_is_stuck_is_slow() -> None:
    replicator = in_sync()
    replicator.place(11, 100.0)
    for second in range(1, 5):
        # A piece that was sent behind the record at position 11.
        replicator.progressed(100.0 + second, 11)
    assert replicator.expired(105.0) == "slow"
    replicator.progressed(104.0, 10)
    assert replicator.expired(105.0) == ""


def test_a_replica_that_is_dropped_is_waited_for_no_more_and_another_may_come() -> None:
    replicator = in_sync()
    replicator.place(15, 0.0)
    assert replicator.durable == 10 and not replicator.free
    assert replicator.drop() and replicator.durable == 15 and replicator.free
    assert not replicator.drop()
    # What it still says counts for nothing.
    assert not replicator.heard(15, 0.0) and not replicator.in_sync
    replicator.accept()
    assert not replicator.in_sync and replicator.durable == 15


def test_the_durable_position_never_falls() -> None:
    replicator = in_sync()
    replicator.place(15, 0.0)
    replicator.drop()
    assert replicator.durable == 15
    replicator.accept()
    replicator.join(0.0)
    assert replicator.durable == 15


@pytest.mark.parametrize("position", [9, 12])
def test_a_position_that_was_never_given_or_lies_behind_an_earlier_one_is_refused(position: int) -> None:
    replicator = in_sync()
    replicator.place(11, 0.0)
    with pytest.raises(RemoteProtocolError):
        replicator.heard(position, 0.0)


# -- the replica


def following(state: str) -> Following:
    """A node that follows, in a state, at position 10."""
    node = Following(3)
    steps = ["asking", "copying", "tailing", "joining", "in_sync"]
    for step in steps[1 : steps.index(state) + 1]:
        if step == "copying":
            node.accepted(4)
        elif step == "tailing":
            node.copied(10)
        elif step == "joining":
            node.joined(10)
        else:
            node.reached(10)
    assert node.state == state
    return node


def test_a_log_is_applied_in_order_and_once() -> None:
    node = following("tailing")
    node.batch(11, 3)
    assert node.position == 13
    for first, count in ((11, 3), (13, 1), (15, 1), (14, 0)):
        with pytest.raises(RemoteProtocolError, match="after position 13"):
            node.batch(first, count)
    node.batch(14, 1)
    assert node.position == 14


@pytest.mark.parametrize("state", ["asking", "copying"])
def test_a_batch_before_the_copy_is_refused(state: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"a batch while {state}"):
        following(state).batch(1, 1)


@pytest.mark.parametrize(("epoch", "fits"), [(2, False), (3, True), (4, True)])
def test_the_log_of_an_older_epoch_is_refused(epoch: int, fits: bool) -> None:
    node = Following(3)
    if fits:
        node.accepted(epoch)
        assert node.epoch == epoch
        return
    with pytest.raises(RemoteProtocolError, match="a log of epoch 2, after epoch 3"):
        node.accepted(epoch)


def test_every_step_comes_in_its_turn() -> None:
    calls = {
        "accept": lambda node: node.accepted(9),
        "copied": lambda node: node.copied(1),
        "join": lambda node: node.joined(99),
        "reach": lambda node: node.reached(99),
    }
    for state in ("asking", "copying", "tailing", "joining", "in_sync"):
        for change, call in calls.items():
            node = following(state)
            if change in FOLLOWING_TRANSITIONS[state]:
                call(node)
                assert node.state == FOLLOWING_TRANSITIONS[state][change]
            else:
                with pytest.raises(RemoteProtocolError):
                    call(node)
                assert node.state == state


def test_only_who_is_in_sync_takes_over_and_only_with_what_the_other_one_had_at_its_end() -> None:
    for state in ("asking", "copying", "tailing", "joining"):
        assert not following(state).may_take_over(1_000, None)
    node = following("in_sync")
    assert node.may_take_over(10, None)
    assert node.may_take_over(12, 12) and not node.may_take_over(11, 12)
    node.end()
    assert not node.may_take_over(12, None)


def test_a_word_that_says_in_sync_too_early_is_refused() -> None:
    node = following("joining")
    with pytest.raises(RemoteProtocolError, match="in sync is who has position 10, and here is 9"):
        node.reached(9)


def test_the_tables_end() -> None:
    assert REPLICA_TRANSITIONS["dropped"] == FOLLOWING_TRANSITIONS["ended"] == {}


# -- the catch-up


def stored(first: int, count: int, positions: list[int] | None = None) -> StoredBatch:
    return StoredBatch(first=Position(first), flags=0, rows=[0] * count, content=b"", positions=positions)


def segment(number: int, base: int, last: int, *, compacted: bool = False) -> StoredSegment:
    return StoredSegment(number=number, base=Position(base), last=Position(last), compacted=compacted)


def test_a_copy_ends_at_a_position_and_the_tail_begins_behind_it() -> None:
    batches = [stored(5, 3), stored(8, 2), stored(10, 5)]
    assert within(batches, 9) == batches[:2]
    assert check_dense(batches[2:], 9) == 14
    with pytest.raises(UsageError):
        check_dense(batches[2:], 8)
    with pytest.raises(UsageError):
        check_dense([stored(10, 2, [10, 14])], 9)


def test_the_tail_is_read_from_the_segments_that_have_it_in_the_order_of_their_records() -> None:
    segments = [segment(7, 31, 40), segment(8, 1, 9, compacted=True), segment(9, 41, 40), segment(6, 11, 30)]
    assert [one.number for one in tail_segments(segments, 25)] == [6, 7]
    assert tail_segments(segments, 40) == []


def test_what_is_left_of_a_copy_is_an_upper_bound_that_never_grows() -> None:
    segments = [attrs.evolve(segment(7, 31, 40), size_bytes=100), attrs.evolve(segment(8, 1, 9), size_bytes=50)]
    left, seen = SyncLeft(segments), []
    for number, batches in ((7, ((4, 30), (6, 60))), (8, ((2, 999),)), (9, ((1, 1),))):
        left.begin(number)
        for records, size in batches:
            left.sent(records, size)
            seen.append((left.records, left.size_bytes))
    assert (SyncLeft(segments).records, SyncLeft(segments).size_bytes) == (19, 150)
    assert seen == [(15, 120), (9, 60), (7, 0), (0, 0)]


def test_a_replica_joins_when_little_is_left_or_after_enough_rounds() -> None:
    assert CatchUp(100).nearly(100 + NEARLY_RECORDS, 100)
    # What was sent, and is not on the disk of the replica, does not count.
    assert not CatchUp(100).nearly(101 + NEARLY_RECORDS, 100)
    far = CatchUp(100)
    assert [far.nearly(10**9, 0) for _ in range(ROUNDS_MAX + 1)] == [False] * ROUNDS_MAX + [True]


# -- directories


def test_the_parts_of_a_copy_take_the_place_of_the_store_which_is_saved() -> None:
    names = ["bindings", "journal", "large", "lock", "oldreplica.2", "oldreplica.7", "paging", "standing", "syncing"]
    moves = plan_moves(names, ["bindings", "journal"])
    assert moves.pairs == (
        ("journal", "oldreplica.8/journal"),
        ("bindings", "oldreplica.8/bindings"),
        ("large", "oldreplica.8/large"),
        ("paging", "oldreplica.8/paging"),
        ("syncing/journal", "journal"),
        ("syncing/bindings", "bindings"),
    )
    assert Moves.decode(moves.encode()) == moves
    assert Moves.decode(moves.encode()[:-3]) is None


def test_a_node_without_a_store_saves_none() -> None:
    assert plan_moves(["syncing", "lock"], ["journal"]).pairs == (("syncing/journal", "journal"),)


@pytest.mark.parametrize(("keep", "gone"), [(0, [1, 3, 12]), (1, [1, 3]), (2, [1]), (3, []), (9, []), (math.inf, [])])
def test_so_many_saved_stores_are_kept_the_newest(keep: float, gone: list[int]) -> None:
    names = ["oldreplica.12", "oldreplica.3", "oldreplica.1", "oldreplica.x", "oldreplica.01", "journal"]
    assert to_remove(names, keep) == [f"oldreplica.{number}" for number in gone]


def test_the_name_of_a_saved_store_has_its_number() -> None:
    names = ["oldreplica.1", "oldreplica.10", "oldreplica.", "oldreplica.0", "x"]
    assert [saved_number(name) for name in names] == [1, 10, None, None, None]


# -- the memory


def test_a_node_remembers_its_standing_and_damage_is_found() -> None:
    standing = Standing(epoch=3, activation=7, acted=True, in_sync=True, partner="b", members=("a", "b"))
    data = encode_standing(standing)
    assert decode_standing(data, "/d/standing") == standing
    for damaged in (data[:-1], data.replace(b"3", b"4"), b"", b"x\n{}"):
        with pytest.raises(DamagedError, match="standing"):
            decode_standing(damaged, "/d/standing")


def test_what_a_node_remembers_can_be_read_by_the_versions_before_and_after_a_new_field() -> None:
    def written(body: bytes) -> bytes:
        return b"%08x\n" % zlib.crc32(body) + body

    assert b"replica" not in encode_standing(Standing(epoch=3))
    known = Standing(epoch=3, members=("a", "b"), replica="69" * 16)
    assert decode_standing(encode_standing(known), "/d/standing") == known
    assert decode_standing(written(b'{"epoch": 3, "later_field": [1]}'), "/d/standing") == Standing(epoch=3)
    with pytest.raises(DamagedError, match="standing"):
        decode_standing(written(b"[]"), "/d/standing")


def test_a_node_that_can_not_read_what_it_remembers_goes_by_less_than_it_knew() -> None:
    standing = Standing(epoch=3, activation=7, acted=True, in_sync=True, partner="b", members=("a", "b"))
    assert forgotten(standing, 0) == standing
    after = forgotten(standing, 5)
    assert (after.named, after.activation, after.acted, after.in_sync, after.members) == (5, 0, False, False, ())


# -- two nodes that meet


@pytest.mark.parametrize(
    ("epoch", "acted", "in_sync", "refused", "asked", "starts"),
    [
        (0, False, False, False, False, True),
        (3, True, True, False, False, True),
        (3, True, True, True, False, False),
        (0, False, False, True, False, False),
        # It was a replica, and may have been left behind.
        (3, False, True, False, False, False),
        (3, False, False, False, False, False),
        # An operator has made a primary of it.
        (3, False, True, False, True, True),
        (3, False, False, False, True, True),
        (3, False, True, True, True, False),
    ],
)
def test_a_primary_starts_alone_only_if_it_knows_that_nobody_has_served_after_it(
    epoch: int, acted: bool, in_sync: bool, refused: bool, asked: bool, starts: bool
) -> None:
    own = Standpoint(epoch=epoch, acted=acted, in_sync=in_sync, primary=True)
    assert may_start(own, [None], first=True, refused=refused, asked=asked) is starts


# -- who may follow


def test_a_node_that_does_not_belong_to_the_pair_or_has_the_name_of_its_primary_is_refused() -> None:
    admission = Admission(name="a", node_id=b"n" * 16, group="g", fingerprint=b"", locked_epoch=None)
    fits = Replicate(instance=bytes(16), node_name="b", node_id=b"n" * 16, group="g")

    def reason(admission: Admission = admission, **about: Any) -> str:
        return (admission.refusal(attrs.evolve(fits, **about)) or ("", ""))[0]

    assert reason() == reason(node_id=b"", group="") == ""
    # Those that vote could not tell the two, and both would win one vote.
    assert reason(node_name="a") == "node_id"
    assert (reason(node_id=b"m" * 16), reason(group="h"), reason(fingerprint=b"f")) == (
        "node_id",
        "group",
        "encryption_key",
    )
    assert reason(epoch=5) == ""
    assert reason(attrs.evolve(admission, locked_epoch=4), epoch=5) == "node_id"
