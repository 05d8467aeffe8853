"""The judge of the simulated mesh counts the nodes that had a group at the same time."""

from __future__ import annotations

import math

import pytest

from qa.mesh.bursts.groups import too_many


@pytest.mark.parametrize(
    ("came", "timeout_s", "found"),
    [
        ([("a", 0.0), ("a", 1.0)], 2.0, 0),
        ([("a", 0.0), ("b", 1.0)], 2.0, 1),
        ([("a", 0.0), ("b", 1.0), ("c", 1.1)], math.inf, 2),
        # Nobody used it for long enough: another node has it from then on.
        ([("a", 0.0), ("b", 2.0), ("b", 2.1)], 2.0, 0),
        ([("a", 0.0), ("b", 2.0), ("a", 2.1)], 2.0, 1),
        ([("a", 0.0), ("b", 9.0)], math.inf, 1),
    ],
)
def test_only_a_pause_lets_another_node_have_a_group(
    came: list[tuple[str, float]], timeout_s: float, found: int
) -> None:
    assert too_many([(place, b"", at_s) for place, at_s in came], timeout_s) == found
