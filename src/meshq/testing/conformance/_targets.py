"""The conformance suite for ``abc.TargetPolicy``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Final

from meshq.abc import TargetPolicy
from meshq.endpoint import Endpoint
from meshq.testing.conformance._assertions import expect, expect_equal

_NODES: Final = [Endpoint("tcp", f"node-{number}", 61616) for number in range(4)]
_GONE: Final = Endpoint("tcp", "gone", 61616)


def check_target_policy(make_policy: Callable[[], TargetPolicy]) -> None:
    """Check that a policy keeps the contract of ``meshq.abc.TargetPolicy``.

    ``make_policy`` is called once for each check of ``TARGET_POLICY_CHECKS``.

    Raises:
        NonconformanceError: the policy breaks a promise.
    """
    for check in TARGET_POLICY_CHECKS:
        check(make_policy())


def _a_round_has_every_node_once(policy: TargetPolicy) -> None:
    for count in range(len(_NODES) + 1):
        known = _NODES[:count]
        for last in (None, _GONE, *known):
            for leave in (False, True):
                order = list(policy.order(known, last=last, leave_last=leave))
                of_known = [one for one in order if one != _GONE or _GONE in known]
                expect_equal(sorted(map(str, of_known)), sorted(map(str, known)), "a round has every known node once")
                expect(len(order) - len(of_known) <= (last == _GONE), "a round has no other node but the last one")


def _the_same_question_has_the_same_answer(policy: TargetPolicy) -> None:
    for known in permutations(_NODES[:3]):
        given = list(known)
        first = list(policy.order(given, last=known[1], leave_last=True))
        policy.order(_NODES, last=None, leave_last=False)
        expect_equal(list(policy.order(given, last=known[1], leave_last=True)), first, "an order has no memory")
        expect_equal(given, list(known), "the list that was given stays as it is")


#: Every check of the suite, each of which examines a policy of its own.
TARGET_POLICY_CHECKS: Final[tuple[Callable[[TargetPolicy], None], ...]] = (
    _a_round_has_every_node_once,
    _the_same_question_has_the_same_answer,
)
