"""A node that crashes is afterwards what it was before, whatever was done to it.

``python -m tests.broker.test_random_restarts 100 2000`` plays the seeds from 100 on that are below 2000.
"""

from __future__ import annotations

import sys

import pytest

from tests.broker.random_node import RandomNode

SEEDS = 18
LIVES = 4


def changed(seed: int) -> list[str]:
    """What crashes of a random node have changed; empty as it should be."""
    node = RandomNode(seed)
    for life in range(1, LIVES + 1):
        for _ in range(node.rng.randrange(5, 60)):
            node.step()
        if node.rng.random() < 0.5:
            node.crash_at_work()
        if found := node.crash_at_rest():
            return [f"seed {seed}, life {life}, after {', '.join(node.done[-5:])}", *found]
    return []


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_node_is_after_a_crash_what_it_was_before(seed: int) -> None:
    assert changed(seed) == []


def main(first: int, end: int) -> int:
    """Play seeds, and say which of them have found something."""
    bad = 0
    for seed in range(first, end):
        if found := changed(seed):
            bad += 1
            print(*found, sep="\n  ")
    print(f"{end - first} seeds, {bad} of them bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
