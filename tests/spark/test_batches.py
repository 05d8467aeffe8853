"""What a batch reads, and by how many tasks."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st

from meshq.spark._batches_plan import Backlog, Slice, admitted, has_to_wait, most_rows, slices_of

RANGES = st.dictionaries(
    st.sampled_from("abcd"), st.tuples(st.integers(1, 50), st.integers(0, 60)).map(lambda pair: (pair[0], sum(pair)))
)


@hypothesis.given(ranges=RANGES, most=st.none() | st.integers(1, 100))
def test_limits_share_out_what_waits(ranges: dict[str, tuple[int, int]], most: int | None) -> None:
    ends = admitted({key: Backlog(*range) for key, range in ranges.items()}, most)
    total = sum(hi - lo for lo, hi in ranges.values())
    assert sum(ends[key] - lo for key, (lo, _) in ranges.items()) == (total if most is None else min(total, most))
    assert all(lo <= ends[key] <= hi for key, (lo, hi) in ranges.items())


def test_shares_follow_the_backlogs() -> None:
    assert admitted({"a": Backlog(1, 101), "b": Backlog(1, 11)}, 22) == {"a": 21, "b": 3}
    assert admitted({"a": Backlog(1, 2), "b": Backlog(1, 2), "c": Backlog(5, 5)}, 1) == {"a": 2, "b": 1, "c": 5}


def test_holes_count_for_nothing() -> None:
    backlog = Backlog(1, 1_011, ((3, 1_001), (1_002, 1_003)))
    assert backlog.size == 11
    assert [backlog.end_after(count) for count in (0, 1, 2, 3, 4, 11)] == [1, 2, 1_001, 1_003, 1_004, 1_011]
    assert Backlog(1, 9, ((1, 9),)).end_after(0) == 9
    assert admitted({"a": backlog, "b": Backlog(5, 9, ((5, 9),))}, 2) == {"a": 1_001, "b": 9}


def test_a_limit_in_bytes_counts_by_the_mean_size() -> None:
    assert most_rows(None, None, 100) is None
    assert most_rows(7, None, 0) == 7
    assert most_rows(7, 500, 100) == 5
    assert most_rows(None, 10, 100) == 1
    assert most_rows(None, 10, 0.0) is None


def test_a_batch_waits_for_enough_but_not_for_ever() -> None:
    assert has_to_wait(4, 5, 0.0, 10.0)
    assert not has_to_wait(5, 5, 0.0, 10.0)
    assert not has_to_wait(4, 5, 10.0, 10.0)
    assert not has_to_wait(1, None, 0.0, 10.0)


@hypothesis.given(ranges=RANGES, least=st.none() | st.integers(1, 30), most=st.none() | st.integers(1, 30))
def test_slices_cover_the_ranges_within_the_limits(
    ranges: dict[str, tuple[int, int]], least: int | None, most: int | None
) -> None:
    slices = slices_of(ranges, least, most)
    for key, (lo, hi) in ranges.items():
        mine = [one for one in slices if one.key == key]
        assert [one.lo for one in mine] == [lo, *(one.hi for one in mine[:-1])][: len(mine)]
        assert (mine[-1].hi if mine else lo) == hi
        assert all(one.lo < one.hi for one in mine)
        assert most is None or all(one.hi - one.lo <= most for one in mine)
    total = sum(hi - lo for lo, hi in ranges.values())
    assert least is None or len(slices) >= min(least, total)


def test_without_limits_each_partition_is_one_slice() -> None:
    assert slices_of({"a": (1, 5), "b": (3, 3)}, None, None) == [Slice("a", 1, 5)]
    assert slices_of({"a": (1, 6)}, 2, None) == [Slice("a", 1, 3), Slice("a", 3, 6)]
