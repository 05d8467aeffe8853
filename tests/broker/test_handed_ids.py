"""Duplicate ids that another node has handed over: beside the window's own, until each is too old."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from meshq.broker.log._duplicates import DuplicateIds, IdChunk


def ids(name: str, count: int) -> list[bytes]:
    return [f"{name}{number}".encode() for number in range(count)]


def window_with(capacity: int, own: list[bytes]) -> DuplicateIds:
    window = DuplicateIds(capacity)
    for one in own:
        window.add(IdChunk(0, [one]))
    return window


def test_a_window_grows_to_the_sum_and_drops_the_oldest_of_each_with_each_new_id() -> None:
    window = window_with(3, ids("own", 3))
    assert window.add(IdChunk(9, ids("other", 3), 9, 0)) == []
    assert len(window) == 6
    assert window.add(IdChunk(0, [b"n1"])) == []
    assert window.known() == [b"other1", b"other2", b"own1", b"own2", b"n1"]
    window.add(IdChunk(0, [b"n2"]))
    assert window.add(IdChunk(0, [b"n3"])) == [9]
    assert window.known() == [b"n1", b"n2", b"n3"]


def test_ids_with_newer_ones_elsewhere_are_as_old_here() -> None:
    window = window_with(3, [])
    window.add(IdChunk(8, ids("old", 3), 8, 2))
    assert window.known() == [b"old2"]
    window.add(IdChunk(9, ids("new", 2), 9, 0))
    assert window.known() == [b"old2", b"new0", b"new1"]


def test_a_smaller_window_drops_what_is_too_old_for_it() -> None:
    window = window_with(3, ids("own", 3))
    window.add(IdChunk(9, ids("other", 3), 9, 0))
    assert window.resize(1) == []
    assert window.known() == [b"other2", b"own2"]
    assert window.resize(0) == [9]
    assert window.known() == []


def test_parts_are_the_oldest_ids_in_order_and_each_says_how_many_follow() -> None:
    window = window_with(9, ids("own", 3))
    window.add(IdChunk(9, ids("other", 2), 9, 0))
    found = []
    while (part := window.part(2, 1_000))[0].ids:
        found.append(part[0])
        for chunk, place in part[1]:
            chunk.given = place
    assert [list(one.ids) for one in found] == [[b"other0", b"other1"], [b"own0", b"own1"], [b"own2"]]
    assert [one.newer for one in found] == [3, 1, 0]
    assert window.left == 0 and len(window) == 5
    window.take_back()
    assert window.left == 5


def test_a_part_has_ids_of_durable_messages_or_of_others_and_a_window_keeps_them_apart() -> None:
    window, other = DuplicateIds(9), DuplicateIds(9)
    window.add(IdChunk(0, [b"v1"], durable=False))
    window.add(IdChunk(1, [b"d1"]))
    window.add(IdChunk(2, [b"d2"]))
    window.add(IdChunk(0, [b"v2"], durable=False))
    found = []
    while (part := window.part(9, 1_000))[0].ids:
        found.append(part[0])
        for chunk, place in part[1]:
            chunk.given = place
    assert [(list(one.ids), one.newer, one.durable) for one in found] == [
        ([b"v1", b"v2"], 0, False),
        ([b"d1", b"d2"], 1, True),
    ]
    for position, one in enumerate(found, 7):
        where = position if one.durable else 0
        other.add(IdChunk(where, one.ids, where, one.newer, durable=one.durable))
    assert other.fresh_rows([b"v1", b"d1", b"d2", b"v2"]) == [0, 3]
    assert other.fresh_rows([b"v1", b"d1", b"d2", b"v2"], durable=False) == []
    # They age all the same.
    assert other.resize(2) == [] and other.known() == [b"v1", b"v2", b"d2"]


def test_kinds_that_take_turns_are_two_parts_and_no_part_looks_at_what_went_before() -> None:
    window, reads = DuplicateIds(2_000), 0

    class Chunk(IdChunk):
        __slots__ = ()

        @property
        def kept(self) -> range:
            nonlocal reads
            reads += 1
            return super().kept

    for number in range(2_000):
        window.add(Chunk(0, [b"%d" % number], durable=bool(number % 2)))
    parts = 0
    while (part := window.part(100, 100_000))[0].ids:
        parts += 1
        for chunk, place in part[1]:
            chunk.given = place
    assert parts == 20 and reads < 20_000


def test_ids_that_come_while_others_leave_are_handed_over_too_and_are_newer() -> None:
    window = window_with(9, ids("own", 3))
    ((part, reached), _) = window.part(2, 1_000), window.add(IdChunk(0, [b"late"]))
    assert (part.ids, part.newer) == ((b"own0", b"own1"), 1)
    for chunk, place in reached:
        chunk.given = place
    for left, newer in ((b"own2", 1), (b"late", 0)):
        part, reached = window.part(9, 1_000)
        assert (part.ids, part.newer) == ((left,), newer)
        reached[0][0].given = 1
    assert window.part(9, 1_000)[0].ids == ()


def test_an_id_stays_as_long_as_its_own_place_does_whatever_was_handed_over_for_it() -> None:
    window = window_with(10, [])
    window.add(IdChunk(0, [b"x"], durable=False))
    window.add(IdChunk(9, [b"x"], 9, 7))
    assert window.fresh_rows([b"x"]) == []
    assert window.add(IdChunk(0, ids("own", 3))) == [9]
    # What was durable is too old, and a repeat of the other one is still a repeat.
    assert window.fresh_rows([b"x"], durable=False) == []
    assert window.fresh_rows([b"x"]) == [0]
    window.add(IdChunk(0, ids("more", 10)))
    assert b"x" not in window.known() and window.fresh_rows([b"x"], durable=False) is None


@given(some.integers(1, 6), some.integers(0, 9), some.integers(0, 9), some.integers(0, 9))
def test_each_id_is_known_until_as_many_newer_ones_have_come_as_the_window_has_room_for(
    capacity: int, before: int, handed: int, after: int
) -> None:
    """As if there were two windows, of which each gets all that comes later."""
    first, second = ids("own", before)[-capacity:], ids("other", handed)[-capacity:]
    window = window_with(capacity, ids("own", before))
    if second:
        window.add(IdChunk(9, second, 9, 0))
    later = ids("later", after)
    for one in later:
        window.add(IdChunk(0, [one]))
    known = {*(first + later)[-capacity:], *(second + later)[-capacity:]}
    assert {*window.known()} == known and len(window) == len(known)
