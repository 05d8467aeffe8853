"""Policies that look at the key, or at the connections of targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs
import pytest

from meshq import BalancerTarget, ConsistentHash, LeastConnections

TEN = tuple(BalancerTarget(url=f"tcp://n{number}:1", node_id=f"{number:032x}") for number in range(10))


def spread(keys: Sequence[str], targets: Sequence[BalancerTarget]) -> dict[str, BalancerTarget]:
    policy = ConsistentHash()
    found = {}
    for key in keys:
        chosen = policy.select(targets, key)
        assert chosen is not None
        found[key] = chosen
    return found


@pytest.mark.slow
def test_a_hundred_thousand_keys_are_within_five_percent_of_even_and_only_the_share_of_one_target_moves() -> None:
    keys = [f"device-{number}" for number in range(100_000)]
    before = spread(keys, TEN)
    counts = Counter(before.values())
    assert len(counts) == 10 and all(abs(count - 10_000) < 500 for count in counts.values())
    without = spread(keys, TEN[:4] + TEN[5:])
    moved = [key for key in keys if without[key] != before[key]]
    assert len(moved) == counts[TEN[4]] and all(before[key] == TEN[4] for key in moved)
    # What has lost its target is spread over all others.
    gained = Counter(without[key] for key in moved)
    assert len(gained) == 9 and all(abs(count - len(moved) / 9) < 0.2 * len(moved) / 9 for count in gained.values())
    eleventh = BalancerTarget(url="tcp://n10:1", node_id=f"{10:032x}")
    wider = spread(keys, (*TEN, eleventh))
    assert all(wider[key] in (before[key], eleventh) for key in keys)
    assert abs(sum(wider[key] == eleventh for key in keys) - 100_000 / 11) < 500


def test_a_thousand_keys_stay_and_only_those_of_a_removed_target_move_until_it_is_back() -> None:
    keys = [f"k{number}" for number in range(1_000)]
    four = TEN[:4]
    before = spread(keys, four)
    assert spread(keys, four) == before == spread(keys, four[::-1])
    three = (*four[:1], *four[2:])
    without = spread(keys, three)
    assert {key for key in keys if without[key] != before[key]} == {key for key in keys if before[key] == four[1]}
    assert spread(keys, four) == before


def test_a_node_keeps_its_keys_at_another_place_and_one_without_an_id_goes_by_its_url() -> None:
    keys = [f"k{number}" for number in range(200)]
    before = spread(keys, TEN)
    moved = (attrs.evolve(TEN[0], url="tcp://elsewhere:2"), *TEN[1:])
    assert {key: one.node_id for key, one in spread(keys, moved).items()} == {k: t.node_id for k, t in before.items()}
    unknown = [BalancerTarget(url=one.url) for one in TEN]
    assert len(set(spread(keys, unknown).values())) == 10


def loads(*counts: int) -> list[BalancerTarget]:
    return [BalancerTarget(url=f"tcp://n{at}:1", connections=count) for at, count in enumerate(counts)]


def test_the_fewest_connections_win_and_equal_ones_take_turns() -> None:
    chosen = LeastConnections().select(loads(5, 1, 3), "")
    assert chosen is not None and chosen.url == "tcp://n1:1"
    for seed in range(20):
        policy, counts = LeastConnections().begin(seed), [5, 1, 3, 0]
        for _ in range(400):
            targets = loads(*counts)
            chosen = policy.select(targets, "")
            assert chosen is not None
            counts[targets.index(chosen)] += 1
            if sum(counts) > 20:
                assert max(counts) - min(counts) <= 1
    policy = LeastConnections().begin(3)
    three = loads(0, 0, 0)
    assert Counter(policy.select(three, "") for _ in range(30)) == dict.fromkeys(three, 10)
    assert policy.select([], "") is None
