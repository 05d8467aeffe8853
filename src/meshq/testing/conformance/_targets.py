"""The conformance suites for ``abc.TargetPolicy`` and ``abc.TopologySource``."""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from typing import Final, cast

import attrs

from meshq.abc import TargetPolicy, TopologySource
from meshq.endpoint import Endpoint
from meshq.errors import SettingsError
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


def check_topology_source(make_source: Callable[[], TopologySource]) -> None:
    """Check that a source of nodes keeps the contract of ``meshq.abc.TopologySource``.

    ``make_source`` is called once for each check of ``TOPOLOGY_SOURCE_CHECKS``; the nodes that its source knows do not
    change during the check.

    Raises:
        NonconformanceError: the source breaks a promise.
    """
    for check in TOPOLOGY_SOURCE_CHECKS:
        check(make_source())


def _known(source: TopologySource) -> list[Endpoint]:
    answer: object = source.endpoints()
    expect(isinstance(answer, Sequence), "the nodes are a sequence, without a wait")
    return list(cast(Sequence[Endpoint], answer))


def _every_node_can_be_dialed(source: TopologySource) -> None:
    for endpoint in _known(source):
        expect(isinstance(endpoint, Endpoint) and _is_valid(endpoint), "a node is an endpoint with a valid URL")


def _is_valid(endpoint: Endpoint) -> bool:
    try:
        return Endpoint.parse(str(endpoint)) == endpoint
    except SettingsError:
        return False


def _every_node_is_there_once(source: TopologySource) -> None:
    known = _known(source)
    expect_equal(known, list(dict.fromkeys(known)), "each node is there once")


def _the_nodes_are_there_as_often_as_they_are_asked_for(source: TopologySource) -> None:
    first = _known(source)
    for _ in range(_REPEATS):
        expect_equal(_known(source), first, "nodes that stay are there in each round, in the same order")


def _a_list_belongs_to_the_caller_or_can_not_be_changed(source: TopologySource) -> None:
    answer = source.endpoints()
    first = list(answer)
    if isinstance(answer, MutableSequence):
        answer.clear()
    expect_equal(_known(source), first, "a list that the caller changes changes nothing in the source")


#: Every check of the suite, each of which examines a source of its own.
TOPOLOGY_SOURCE_CHECKS: Final[tuple[Callable[[TopologySource], None], ...]] = (
    _every_node_can_be_dialed,
    _every_node_is_there_once,
    _the_nodes_are_there_as_often_as_they_are_asked_for,
    _a_list_belongs_to_the_caller_or_can_not_be_changed,
)
