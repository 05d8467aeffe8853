"""Policies of a program's own that fail: no client and no operator can fell the broker through them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
import trio

from meshq import BalancerPolicy, BalancerTarget, BrokerBalancer, SettingsError, UsageError, UseAnotherServerError
from meshq.lb import begun_policy
from tests.balancers.kit import balanced, machines, node_of, pool_of, url_of


class Broken(BalancerPolicy):
    """A policy with a fault."""

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        raise ValueError("of the program")


class Locked(BalancerPolicy):
    """A policy that can begin and can't be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def begin(self, chance: int) -> BalancerPolicy:
        return Locked()

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        return targets[0]


class HoldsALock(BalancerPolicy):
    """A policy that can't be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        return None


class BeginsAsNone(Locked):
    """A policy that begins as no policy."""

    def begin(self, chance: int) -> BalancerPolicy:
        return None  # type: ignore[return-value]


async def test_a_policy_that_raises_refuses_the_client_and_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async with balanced("a", policy=Broken()) as made:
        with pytest.raises(UseAnotherServerError, match=r"Broken\.select has raised ValueError") as caught:
            async with made.dial():
                raise AssertionError("there is no target")
        assert "of the program" not in str(caught.value)
        async with made.dial(url_of("front")) as client:
            assert await client.balancer("lb").target("key") is None
            with pytest.raises(UsageError, match="has raised ValueError"):
                await client.balancer("lb").explain_route("key")
        warned = [one for one in caplog.records if getattr(one, "event", "") == "balancer_policy_failed"]
        assert len(warned) == 1 and "of the program" in warned[0].message


async def test_a_policy_that_raises_when_the_quorum_is_there_refuses_those_who_have_waited() -> None:
    async with machines() as made:
        await made.start("front", BrokerBalancer("lb", policy=Broken(), pool=pool_of("a")), redirect_to="lb")

        async def arrive() -> None:
            with pytest.raises(UseAnotherServerError, match="has raised ValueError"):
                async with made.dial():
                    raise AssertionError("there is no target")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(arrive)
            await trio.sleep(1)
            await made.start("a")
        assert made.balancer().statistics().refused == 1


async def test_a_policy_that_can_not_be_copied_is_used_and_not_explained() -> None:
    async with balanced("a", policy=Locked()) as made:
        async with made.dial() as client:
            assert node_of(client) == "a"
        with pytest.raises(SettingsError, match="a policy that can be copied"):
            made.balancer().explain_route("key")
        async with made.dial(url_of("front")) as client:
            with pytest.raises(UsageError, match="a policy that can be copied"):
                await client.balancer("lb").explain_route("key")
            assert await client.balancer("lb").target("key") is not None


def test_a_policy_that_can_not_be_copied_is_named_as_the_setting_that_it_is() -> None:
    with pytest.raises(
        SettingsError, match=r"^policy='HoldsALock' is not allowed; allowed: a policy that can be copied"
    ):
        begun_policy("policy", HoldsALock(), 1)


def test_what_a_policy_says_of_a_setting_of_its_own_is_said_as_it_is() -> None:
    class Weighted(Locked):
        def begin(self, chance: int) -> BalancerPolicy:
            raise SettingsError("weight", -1, "0 or more")

    with pytest.raises(SettingsError, match=r"^weight=-1 is not allowed; allowed: 0 or more"):
        begun_policy("policy", Weighted(), 1)


@pytest.mark.parametrize("policy", [BeginsAsNone])
async def test_a_policy_that_begins_as_none_is_refused_at_the_start(policy: Callable[[], BalancerPolicy]) -> None:
    async with machines() as made:
        balancer = BrokerBalancer("lb", policy=policy(), pool=pool_of("a"))
        with pytest.RaisesGroup(pytest.RaisesExc(SettingsError, match=r"BeginsAsNone\.begin"), flatten_subgroups=True):
            async with trio.open_nursery() as nursery:
                made.nursery = nursery
                await made.start("front", balancer, redirect_to="lb")
