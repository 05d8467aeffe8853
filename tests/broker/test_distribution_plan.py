"""Dealing a run among nodes: exact counts, from any start."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshq.broker.catalog._distribution_plan import (
    ClusteredQueue,
    Member,
    RemoteBinding,
    Share,
    nearest,
    pieces,
    plan,
    plan_by_key,
)
from meshq.broker.ingress._filter_scan_plan import placed, sift
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._queue_spec import QueueSpec
from meshq.selector import Filter, parse_filter
from tests.broker.queues import join


def forward(number: int) -> Queue:
    return Queue(number, f"$meshq.cluster.mesh.{number}", "f", durable=True)


def clustered(
    *,
    local: int | None = 1,
    remotes: tuple[int, ...] = (),
    mode: str = "on_demand",
    name: str = "q",
    filters: tuple[str, ...] = (),
    own: tuple[str | None, ...] = (None,),
    number: int = 1,
) -> ClusteredQueue:
    """A ring with consumers as the numbers say; ``local`` None: this node has no such queue.

    ``filters``: of the consumers elsewhere; ``own``: of the queues, the one here first.
    """
    made = ClusteredQueue(name)
    takes = [parse_filter(text) if text else None for text in own] + [None] * len(remotes)
    if local is not None:
        made.local = Queue(number, name, "a", durable=True, spec=QueueSpec(filter=takes[0]))
        for _ in range(local):
            join(made.local)
    for index, consumers in enumerate(remotes):
        wanted = (parse_filter(filters[index]),) if filters else ()
        about = (7 + index, name, "a", "anycast", consumers, wanted, takes[1 + index])
        binding = RemoteBinding(forward(99 + number + index), mode, *about)
        made.remotes.append(binding)
    return made


def wants(filters: tuple[Filter, ...], row: int) -> bool:
    """``size = 2``: what its row's number has to be divisible by."""
    return any(row % int(filter.text[-1]) == 0 for filter in filters)


def dealt(
    clustered_queues: list[ClusteredQueue], rows: int, *, anycast: bool = True, turn: int = 0
) -> dict[int, list[int]]:
    """Rows by the number of the queue that has them."""
    found: dict[int, list[int]] = {}
    for queue, part, _ in plan(clustered_queues, range(rows), anycast=anycast, next_index=turn, wants=wants):
        found.setdefault(queue.number, []).extend(part)
    return {number: sorted(part) for number, part in found.items()}


def test_by_a_key_each_message_goes_to_the_same_queue_whoever_deals_it_and_wherever_it_would_wait() -> None:
    def by_key(made: ClusteredQueue) -> dict[int, list[int]]:
        def key(row: int, member: Member) -> bytes:
            number = member.forward.number if isinstance(member, RemoteBinding) else member.number
            return b"%d" % ((row + number) % 2)

        shares = plan_by_key([made], range(6), key, wants)
        return {queue.number: sorted(row for share in shares if share.queue is queue for row in share.rows)
                for queue, _, _ in shares}  # fmt: skip

    # Whether all of them are consumed from, or none is.
    for consumers in (1, 0):
        assert by_key(clustered(local=consumers, remotes=(consumers,))) == {1: [0, 2, 4], 100: [1, 3, 5]}
    assert by_key(clustered(local=0, remotes=(1,))) == {100: [0, 1, 2, 3, 4, 5]}
    assert by_key(clustered(local=0, remotes=(0,), mode="off_with_redistribution")) == {1: [0, 1, 2, 3, 4, 5]}
    # Filters decide before the key.
    halves = clustered(remotes=(1,), own=(None, "size = 2"))
    assert by_key(halves) == {1: [0, 1, 2, 3, 4, 5]}
    assert by_key(clustered(remotes=(1,), own=("size = 3", None))) == {1: [0], 100: [1, 2, 3, 4, 5]}


@pytest.mark.parametrize(
    ("remotes", "local", "mode", "counts"),
    [
        ((1, 1, 1), 1, "on_demand", {1: 3, 100: 3, 101: 3, 102: 3}),
        ((3, 1), 1, "on_demand", {1: 4, 100: 4, 101: 4}),
        ((1,), 0, "on_demand", {100: 12}),
        ((0,), 0, "on_demand", {1: 12}),
        ((0, 0, 0), 1, "on_demand", {1: 12}),
        ((0, 1, 0), 0, "on_demand", {101: 12}),
        ((0,), 1, "strict", {1: 6, 100: 6}),
        ((0, 0, 0), 0, "strict", {1: 3, 100: 3, 101: 3, 102: 3}),
        ((3, 1), 0, "off", {1: 12}),
    ],
)
def test_messages_go_where_they_are_wanted_and_in_turn(
    remotes: tuple[int, ...], local: int, mode: str, counts: dict[int, int]
) -> None:
    got = dealt([clustered(local=local, remotes=remotes, mode=mode)], 12)
    assert {number: len(rows) for number, rows in got.items()} == counts
    assert sorted(row for rows in got.values() for row in rows) == list(range(12))


def test_strict_deals_to_each_name_of_an_anycast_address_and_waits_elsewhere_only_if_nobody_has_one_here() -> None:
    for mode, expected in (
        ("strict", {1: 4, 100: 4}),
        ("on_demand", {1: 8}),
        ("off", {1: 8}),
        ("off_with_redistribution", {1: 8}),
    ):
        clustered_queues = [clustered(name="q0", local=0), clustered(name="q1", local=None, remotes=(0,), mode=mode)]
        assert {number: len(rows) for number, rows in dealt(clustered_queues, 8).items()} == expected
        # Asked for elsewhere, it crosses on demand only.
        clustered_queues = [clustered(name="q0", local=0), clustered(name="q1", local=None, remotes=(1,), mode=mode)]
        asked = {number: len(rows) for number, rows in dealt(clustered_queues, 8).items()}
        assert asked == ({100: 8} if mode == "on_demand" else expected)
        clustered_queues = [clustered(name="q1", local=None, remotes=(0, 0), mode=mode)]
        there = {number: len(rows) for number, rows in dealt(clustered_queues, 8).items()}
        assert there == ({100: 4, 101: 4} if mode != "off" else {})


@pytest.mark.parametrize("filters", [(), ("size = 1", "size = 1")])
def test_a_node_that_is_gone_gets_nothing_that_somebody_else_takes_but_a_share_where_each_has_one(
    filters: tuple[str, ...],
) -> None:
    def counts(mode: str, gone: str, **about: int | None) -> dict[int, int]:
        one = clustered(remotes=(1, 1), mode=mode, filters=filters, **about)  # type: ignore[arg-type]
        one.remotes[0] = one.remotes[0]._replace(gone=gone)
        return {number: len(rows) for number, rows in dealt([one], 12).items()}

    for gone in ("away", "left"):
        assert counts("on_demand", gone) == {1: 6, 101: 6}
        assert counts("on_demand", gone, local=0) == {101: 12}
        assert counts("off_with_redistribution", gone, local=None) == {101: 12}
    assert counts("strict", "away") == {1: 4, 100: 4, 101: 4}
    assert counts("strict", "left") == {1: 6, 101: 6}
    # What nobody asks for waits on a node that is there, if one has the name.
    both = clustered(local=None, remotes=(0, 0), filters=filters)
    both.remotes[0] = both.remotes[0]._replace(gone="away")
    assert dealt([both], 4) == {101: [0, 1, 2, 3]}
    for mode in ("on_demand", "strict", "off_with_redistribution"):
        alone = clustered(local=None, remotes=(1,), mode=mode)
        alone.remotes[0] = alone.remotes[0]._replace(gone="left")
        assert dealt([alone], 2) == {100: [0, 1]}


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(0, 50), st.integers(1, 4))
def test_the_turn_goes_on_from_run_to_run_wherever_it_began(runs: list[int], start: int, nodes: int) -> None:
    one = clustered(remotes=(1,) * (nodes - 1))
    one.next_index = start
    order: list[int] = []
    for rows in runs:
        where = {row: number for number, part in dealt([one], rows).items() for row in part}
        order += [where[row] for row in range(rows)]
    members = [1, *range(100, 99 + nodes)]
    assert order == [members[(start + index) % nodes] for index in range(sum(runs))]


def test_filters_are_judged_message_by_message_and_what_nobody_wants_stays() -> None:
    one = clustered(local=0, remotes=(1, 1), filters=("size = 2", "size = 3"))
    got = dealt([one], 12)
    assert got[1] == [1, 5, 7, 11]
    assert set(got[100]) <= {0, 2, 4, 6, 8, 10} and set(got[101]) <= {0, 3, 6, 9}
    assert sorted(got[1] + got[100] + got[101]) == list(range(12))
    # Nobody is passed over for ever: of what both want, each gets a part.
    assert {0, 6} - set(got[100]) and {0, 6} - set(got[101])


def test_the_three_sizes_of_demand_with_a_filter() -> None:
    for consumers, expected in ((0, {1: 6}), (1, {1: 3, 100: 3}), (3, {1: 3, 100: 3})):
        got = dealt([clustered(local=0, remotes=(consumers,), filters=("size = 2",))], 6)
        assert {number: len(rows) for number, rows in got.items()} == expected


def test_each_name_of_a_multicast_address_gets_every_message_once() -> None:
    clustered_queues = [
        clustered(name="q", remotes=(1, 1)),
        clustered(name="s1"),
        clustered(name="s2", local=None, remotes=(0,)),
    ]
    got = plan(clustered_queues, range(9), anycast=False, next_index=0, wants=wants)
    of_name: Counter[str] = Counter()
    for share in got:
        names = [remote.name for one in clustered_queues for remote in one.remotes if remote.forward is share.queue]
        of_name[names[0] if names else share.queue.name] += len(share.rows)
    assert of_name == {"q": 9, "s1": 9, "s2": 9}


def test_what_is_for_two_queues_of_one_peer_goes_there_once() -> None:
    first, second = clustered(name="s1", local=None, remotes=(1,)), clustered(name="s2", local=None, remotes=(1,))
    second.remotes[0] = second.remotes[0]._replace(forward=first.remotes[0].forward, number=8)
    shares = plan([first, second], range(4), anycast=False, next_index=0, wants=wants)
    assert shares == [Share(first.remotes[0].forward, range(4), (7, 8))]


def test_the_names_of_an_anycast_address_take_turns() -> None:
    clustered_queues = [clustered(name="a"), clustered(name="b", local=None, remotes=(1,))]
    assert dealt(clustered_queues, 4) == {1: [0, 2], 100: [1, 3]}
    assert dealt(clustered_queues, 3, turn=1) == {1: [1], 100: [0, 2]}
    # Also where it matters what is in them.
    clustered_queues = [clustered(name="a", own=("size = 1",)), clustered(name="b", number=2, own=("size = 1",))]
    assert dealt(clustered_queues, 4) == {1: [0, 2], 2: [1, 3]}
    # A name that nobody consumes from is passed over while somebody consumes from another.
    assert dealt([clustered(name="a", local=0), clustered(name="b", local=None, remotes=(1,))], 4) == {
        100: [0, 1, 2, 3]
    }


@given(st.lists(st.integers(0, 300), unique=True, min_size=1, max_size=60).map(sorted))
def test_pieces_are_the_rows_again(rows: list[int]) -> None:
    found = pieces(rows)
    assert [row for piece in found for row in piece] == rows
    assert all(piece for piece in found)
    assert pieces(range(3, 90, 7)) == [range(3, 90, 7)]
    assert pieces([3, 10, 17, 24]) == [range(3, 25, 7)]


# -- queues that take only some messages


@pytest.mark.parametrize("mode", ["strict", "on_demand", "off"])
@pytest.mark.parametrize("consumed", [0, 1])
def test_a_message_goes_to_no_queue_that_does_not_take_it_whatever_the_mode(mode: str, consumed: int) -> None:
    one = clustered(local=consumed, remotes=(1,), mode=mode, own=("size = 2", "size = 3"))
    found = dealt([one], 12)
    both = set(found.get(1, ())) | set(found.get(100, ()))
    assert set(found.get(1, ())) <= set(range(0, 12, 2))
    assert set(found.get(100, ())) <= (set(range(0, 12, 3)) if mode != "off" else set())
    # What one of them takes is lost by none.
    assert both == {row for row in range(12) if row % 2 == 0 or (row % 3 == 0 and mode != "off")}
    assert len(found.get(1, ())) + len(found.get(100, ())) == len(both)


def test_what_nobody_asks_for_waits_where_a_queue_takes_it() -> None:
    one = clustered(local=0, remotes=(0,), own=("size = 2", None))
    assert dealt([one], 6) == {1: [0, 2, 4], 100: [1, 3, 5]}
    # Two that would only keep it take turns, also where the queue here takes some.
    one = clustered(local=1, remotes=(0, 0), own=("size = 9", None, None))
    assert dealt([one], 9) == {1: [0], 100: [2, 4, 6, 8], 101: [1, 3, 5, 7]}


@pytest.mark.parametrize("turn", range(3))
def test_an_anycast_message_goes_to_the_next_name_that_takes_it(turn: int) -> None:
    clustered_queues = [clustered(name="even", own=("size = 2",)), clustered(name="three", number=2, own=("size = 3",))]
    found = dealt(clustered_queues, 12, turn=turn)
    assert sorted(found[1] + found[2]) == [row for row in range(12) if row % 2 == 0 or row % 3 == 0]
    assert set(found[1]) <= set(range(0, 12, 2)) and set(found[2]) <= set(range(0, 12, 3))
    # A name without consumers takes what no other one does.
    clustered_queues = [
        clustered(name="even", own=("size = 2",)),
        clustered(name="three", number=2, local=0, own=("size = 3",)),
    ]
    assert dealt(clustered_queues, 12, turn=turn) == {1: [0, 2, 4, 6, 8, 10], 2: [3, 9]}


@given(
    st.lists(st.sampled_from([None, "size = 2", "size = 3", "size = 5"]), min_size=1, max_size=5),
    st.integers(1, 40),
    st.integers(0, 100),
    st.booleans(),
)
def test_here_each_message_goes_to_all_that_take_it_or_to_the_next_of_them(
    filters: list[str | None], rows: int, turn: int, anycast: bool
) -> None:
    queues = [
        Queue(number, f"q{number}", "a", durable=True, spec=QueueSpec(filter=parse_filter(text) if text else None))
        for number, text in enumerate(filters)
    ]
    shares = sift(queues, range(rows), anycast=anycast, next_index=turn, wants=wants)
    got: dict[int, list[int]] = {row: [] for row in range(rows)}
    for queue, part, _ in shares:
        for row in part:
            got[row].append(queue.number)
    for row in range(rows):
        takers = [number for number, text in enumerate(filters) if text is None or row % int(text[-1]) == 0]
        first = [(turn + row + step) % len(filters) for step in range(len(filters))]
        assert got[row] == ([number for number in first if number in takers][:1] if anycast else takers)
    assert set(placed(shares)) == {row for row in got if got[row]}
    for number in range(len(filters)):
        mine = [row for queue, part, _ in shares if queue.number == number for row in part]
        assert mine == sorted(mine)


def far(
    name: str, distance: int, number: int, *, gone: str = "", node: str = "c", cluster: str = "mesh"
) -> RemoteBinding:
    """A queue of a node by a way over others."""
    path = (node, *(f"n{at}" for at in range(1, distance)))
    queue = Queue(number, f"$meshq.cluster.{cluster}.{path[-1]}", f"$meshq.cluster.{cluster}.{path[-1]}", durable=True)
    return RemoteBinding(queue, "strict", number, name, "q", "anycast", 0, (), gone=gone, path=path)


def test_of_several_ways_to_a_queue_the_shortest_is_used_on_which_no_node_is_gone() -> None:
    direct, near, long = far("q", 1, 1), far("q", 2, 2), far("q", 3, 3)
    assert nearest([long, near, direct]) == [direct]
    assert nearest([long, near]) == [near]
    assert nearest([far("q", 1, 1, gone="away"), long, near]) == [near]
    # If one is gone on each of them, the shortest again: there it waits.
    left, away = far("q", 2, 2, gone="left"), far("q", 3, 3, gone="away")
    assert nearest([away, left]) == [left]


def test_queues_of_other_names_nodes_or_clusters_are_other_queues() -> None:
    bindings = [far("q", 2, 1), far("p", 2, 2), far("q", 2, 3, node="d"), far("q", 2, 4, cluster="other")]
    assert nearest(bindings) == bindings
