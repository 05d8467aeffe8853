"""The suite for target policies finds broken policies out; ``tests/client`` has the policies that conform."""

from __future__ import annotations

import random
from collections.abc import MutableSequence, Sequence

import pytest

from meshq.abc import TargetPolicy
from meshq.endpoint import Endpoint
from meshq.testing import NonconformanceError, check_target_policy


class AsGiven(TargetPolicy):
    """The order that was given; classes below have one fault each."""

    def order(self, endpoints: Sequence[Endpoint], *, last: Endpoint | None, leave_last: bool) -> Sequence[Endpoint]:
        return self.round(endpoints, last)

    def round(self, endpoints: Sequence[Endpoint], last: Endpoint | None) -> Sequence[Endpoint]:
        return endpoints


class Shuffled(AsGiven):
    def round(self, endpoints: Sequence[Endpoint], last: Endpoint | None) -> Sequence[Endpoint]:
        return endpoints if last in endpoints else random.Random().sample(endpoints, len(endpoints))


class RoundRobin(AsGiven):
    turn = 0

    def round(self, endpoints: Sequence[Endpoint], last: Endpoint | None) -> Sequence[Endpoint]:
        if last is not None:
            return endpoints
        self.turn += 1
        first = self.turn % max(len(endpoints), 1)
        return [*endpoints[first:], *endpoints[:first]]


class ReversesTheList(AsGiven):
    def round(self, endpoints: Sequence[Endpoint], last: Endpoint | None) -> Sequence[Endpoint]:
        if last is None and isinstance(endpoints, MutableSequence):
            endpoints.reverse()
        return endpoints


class FourAtMost(AsGiven):
    def round(self, endpoints: Sequence[Endpoint], last: Endpoint | None) -> Sequence[Endpoint]:
        return endpoints[:4]


class OnePortAHost(AsGiven):
    def round(self, endpoints: Sequence[Endpoint], last: Endpoint | None) -> Sequence[Endpoint]:
        return list({endpoint.host: endpoint for endpoint in endpoints}.values())


class Generator(AsGiven):
    def round(self, endpoints: Sequence[Endpoint], last: Endpoint | None) -> Sequence[Endpoint]:
        return (endpoint for endpoint in endpoints)  # type: ignore[return-value]


def test_the_order_that_was_given_conforms() -> None:
    check_target_policy(AsGiven)


@pytest.mark.parametrize(
    ("policy", "promise"),
    [
        (Shuffled, "an order has no memory and no chance"),
        (RoundRobin, "an order has no memory and no chance"),
        (ReversesTheList, "the list that was given stays as it is"),
        (FourAtMost, "a round has every known node once"),
        (OnePortAHost, "a round has every known node once"),
        (Generator, "an order is a sequence"),
    ],
)
def test_a_policy_with_a_fault_does_not_conform(policy: type[TargetPolicy], promise: str) -> None:
    with pytest.raises(NonconformanceError, match=promise):
        check_target_policy(policy)
