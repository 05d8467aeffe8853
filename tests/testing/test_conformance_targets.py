"""The suites for target policies and for sources of nodes find broken ones out."""

from __future__ import annotations

import random
from collections.abc import Callable, MutableSequence, Sequence

import pytest

from meshq.abc import TargetPolicy, TopologySource
from meshq.client.link._targets_plan import FixedTopology
from meshq.endpoint import Endpoint
from meshq.testing import TOPOLOGY_SOURCE_CHECKS, NonconformanceError, check_target_policy, check_topology_source


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


ONE, TWO = Endpoint("tcp", "one", 61616), Endpoint("tls", "two", 61617)


class Known(TopologySource):
    """A source that conforms; classes below have one fault each."""

    def __init__(self) -> None:
        self.known = [ONE, TWO]

    def endpoints(self) -> Sequence[Endpoint]:
        return list(self.known)


class NoneKnown(Known):
    def __init__(self) -> None:
        self.known = []


class Twice(Known):
    def endpoints(self) -> Sequence[Endpoint]:
        return [ONE, TWO, ONE]


class Used(Known):
    def endpoints(self) -> Sequence[Endpoint]:
        known, self.known = self.known, []
        return known


class Rotating(Known):
    def endpoints(self) -> Sequence[Endpoint]:
        self.known.append(self.known.pop(0))
        return list(self.known)


class Exposed(Known):
    def endpoints(self) -> Sequence[Endpoint]:
        return self.known


class Iterating(Known):
    def endpoints(self) -> Sequence[Endpoint]:
        return iter(self.known)  # type: ignore[return-value]


class Undialable(Known):
    def endpoints(self) -> Sequence[Endpoint]:
        return (Endpoint("http", "one", 80),)


class Texts(Known):
    def endpoints(self) -> Sequence[Endpoint]:
        return ("tcp://one:61616",)  # type: ignore[return-value]


@pytest.mark.parametrize("source", [Known, NoneKnown, lambda: FixedTopology((ONE, TWO, ONE))])
def test_a_source_without_a_fault_conforms(source: Callable[[], TopologySource]) -> None:
    check_topology_source(source)
    assert len(TOPOLOGY_SOURCE_CHECKS) == 4


@pytest.mark.parametrize(
    ("source", "promise"),
    [
        (Twice, "each node is there once"),
        (Used, "nodes that stay are there in each round"),
        (Rotating, "nodes that stay are there in each round"),
        (Exposed, "a list that the caller changes changes nothing"),
        (Iterating, "the nodes are a sequence"),
        (Undialable, "a node is an endpoint with a valid URL"),
        (Texts, "a node is an endpoint with a valid URL"),
    ],
)
def test_a_source_with_a_fault_does_not_conform(source: type[TopologySource], promise: str) -> None:
    with pytest.raises(NonconformanceError, match=promise):
        check_topology_source(source)
