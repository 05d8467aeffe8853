"""The conformance suite for ``abc.TargetPolicy``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

import attrs

from meshq.abc import TargetPolicy
from meshq.endpoint import Endpoint
from meshq.testing.conformance._assertions import expect, expect_equal

_NODES: Final = [
    *(Endpoint("tcp", f"node-{number}", 61616) for number in range(4)),
    *(Endpoint("tcp", "node-0", port) for port in range(61617, 61620)),
]
_GONE: Final = Endpoint("tcp", "gone", 61616)
#: How often each question is asked again: a random order is the same each time with a chance below one in a million.
_REPEATS: Final = 3


def check_target_policy(make_policy: Callable[[], TargetPolicy]) -> None:
    """Check that a policy keeps the contract of ``meshq.abc.TargetPolicy``.

    ``make_policy`` is called once for each check of ``TARGET_POLICY_CHECKS``.

    Raises:
        NonconformanceError: the policy breaks a promise.
    """
    for check in TARGET_POLICY_CHECKS:
        check(make_policy())


@attrs.frozen
class _Question:
    known: tuple[Endpoint, ...]
    last: Endpoint | None
    leave_last: bool

    def ask(self, policy: TargetPolicy, kind: Callable[[tuple[Endpoint, ...]], Sequence[Endpoint]]) -> list[Endpoint]:
        given = kind(self.known)
        answer: object = policy.order(given, last=self.last, leave_last=self.leave_last)
        expect(isinstance(answer, Sequence), "an order is a sequence")
        order = list(cast(Sequence[Endpoint], answer))
        expect_equal(tuple(given), self.known, "the list that was given stays as it is")
        return order


def _questions() -> list[_Question]:
    return [
        _Question(known, last, leave_last)
        for count in range(len(_NODES) + 1)
        for known in (tuple(_NODES[:count]), tuple(_NODES[:count][::-1]))
        for last in (None, _GONE, *known)
        for leave_last in (False, True)
    ]


def _a_round_has_every_node_once(policy: TargetPolicy) -> None:
    for question in _questions():
        order = question.ask(policy, tuple)
        of_known = [endpoint for endpoint in order if endpoint != _GONE]
        expect_equal(sorted(map(str, of_known)), sorted(map(str, question.known)), "a round has every known node once")
        expect(len(order) - len(of_known) <= (question.last == _GONE), "a round has no other node but the last one")


def _the_same_question_has_the_same_answer(policy: TargetPolicy) -> None:
    questions = _questions()
    first = [question.ask(policy, list) for question in questions]
    for _ in range(_REPEATS):
        for question, answer in zip(reversed(questions), reversed(first), strict=True):
            expect_equal(question.ask(policy, list), answer, "an order has no memory and no chance")


#: Every check of the suite, each of which examines a policy of its own.
TARGET_POLICY_CHECKS: Final[tuple[Callable[[TargetPolicy], None], ...]] = (
    _a_round_has_every_node_once,
    _the_same_question_has_the_same_answer,
)
