"""Clients that wait for the quorum of a pool, many at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import pytest
import trio
import trio.testing

from meshq import Broker, BrokerBalancer, NotActiveError, UseAnotherServerError, abc
from meshq.lb import BalancerDecision
from meshq.lb.balancer._waiting_clients import WaitingClient, WaitingClients
from tests.balancers.kit import machines, node_of, pool_of, url_of
from tests.cluster.kit import until


def _asked(asked: Counter[str], key: str) -> Callable[[], BalancerDecision]:
    """The decision that there is no quorum, which counts how often it is made."""

    def decide() -> BalancerDecision:
        asked[key] += 1
        return BalancerDecision(key=key, outcome="none", target=None, steps=("no quorum",), waits=True)

    return decide


async def test_a_client_that_comes_costs_those_that_wait_nothing_and_each_is_answered_at_its_own_time() -> None:
    asked: Counter[str] = Counter()
    answered: dict[str, float] = {}
    waiting = WaitingClients()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiting.keep_time)
        for number in range(50):
            await trio.sleep(0.01)

            def answer(decision: BalancerDecision) -> None:
                answered[decision.key] = trio.current_time()

            until_when = trio.current_time() + 3
            waiting.add(WaitingClient(_asked(asked, f"{number}/{until_when}"), answer, until_when))
            await trio.testing.wait_all_tasks_blocked()
        assert not asked and len(waiting) == 50
        await trio.sleep(3.1)
        nursery.cancel_scope.cancel()
    assert set(asked.values()) == {1} and len(answered) == 50 and not len(waiting)
    assert all(abs(at - float(key.partition("/")[2])) < 0.001 for key, at in answered.items())


async def test_one_that_has_gone_does_not_keep_the_others_from_being_answered() -> None:
    asked: Counter[str] = Counter()
    answered: list[str] = []
    waiting = WaitingClients()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiting.keep_time)
        began = trio.current_time()
        made = [
            WaitingClient(_asked(asked, key), lambda decision: answered.append(decision.key), began + 1 + index)
            for index, key in enumerate("abc")
        ]
        for one in made:
            waiting.add(one)
        waiting.withdraw(made[0])
        await trio.sleep(2.5)
        assert answered == ["b"]
        waiting.withdraw(made[2])
        waiting.withdraw(made[2])
        await trio.sleep(1)
        waiting.add(WaitingClient(_asked(asked, "d"), lambda decision: answered.append(decision.key), began + 5))
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    assert answered == ["b", "d"]


async def test_who_asks_for_a_target_and_is_cancelled_waits_no_more() -> None:
    async with machines() as made:
        await made.start("front", BrokerBalancer("lb", pool=pool_of("a", quorum_timeout=60.0)), redirect_to="lb")
        with trio.move_on_after(1):
            await made.balancer().target("key")
        about = made.balancer().statistics()
        assert about.waiting == 0 and about.asked == 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.balancer().target, "key")
            await until(lambda: made.balancer().statistics().waiting == 1)
            await made.start("a")
        assert made.balancer().statistics().asked == 1


async def test_filters_that_are_changed_hold_for_those_who_wait() -> None:
    async with machines() as made:
        pool = pool_of("a", quorum_timeout=30.0)
        await made.start("front", BrokerBalancer("lb", target_key="client_id", pool=pool), redirect_to="lb")
        found: dict[str, tuple[str, float]] = {}

        async def arrive(client_id: str) -> None:
            began = trio.current_time()
            async with made.dial(client_id=client_id, connection_ttl=60, call_timeout=60) as client:
                found[client_id] = node_of(client), trio.current_time() - began

        async with trio.open_nursery() as nursery:
            nursery.start_soon(arrive, "home.1")
            nursery.start_soon(arrive, "shop.1")
            await until(lambda: made.balancer().statistics().waiting == 2)
            made.balancer().set_target_key_filter("^[a-z]+")
            assert made.balancer().statistics().waiting == 2
            made.balancer().set_local_target_filter("home")
            await until(lambda: made.balancer().statistics().waiting == 1)
            await until(lambda: "home.1" in found)
            await made.start("a")
        assert found["home.1"][0] == "front" and found["home.1"][1] < 2
        assert found["shop.1"][0] == "a"
        # What is remembered is the key of the new filter.
        assert "the cache has" in " ".join(made.balancer().explain_route("shop.2").steps)
        assert made.balancer().statistics().keys == 1


class Slow(abc.Service):
    """A service that takes long to start.  ``fails``: it does not start at all."""

    kind: ClassVar[str] = "slow"
    name = "slow"

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails

    def announce(self, control: abc.NodeControl) -> None:
        pass

    async def serve(self, broker: abc.LocalBroker, *, task_status: trio.TaskStatus[None]) -> None:
        await trio.sleep(30)
        if self._fails:
            raise ValueError("it does not start")
        task_status.started()
        await trio.sleep_forever()


async def test_nobody_waits_for_a_quorum_before_the_balancer_is_served() -> None:
    async with machines() as made:
        slow, balancer = Slow(), BrokerBalancer("lb", pool=pool_of("a", quorum_timeout=1.0))
        made.nursery.start_soon(lambda: made.start("front", slow, balancer, redirect_to="lb"))
        await trio.sleep(5)
        began = trio.current_time()
        with pytest.raises(UseAnotherServerError, match="no quorum"):
            async with made.dial(call_timeout=60, connection_ttl=60):
                raise AssertionError("there is no target")
        with trio.fail_after(10), pytest.raises(NotActiveError, match="'lb' is not served"):
            await balancer.target("key")
        async with made.dial(url_of("front")) as client:
            assert await client.balancer("lb").target("key") is None
        assert trio.current_time() - began < 1.1
        await trio.sleep(30)
        await made.start("a")
        await made.ready("a")
        async with made.dial() as client:
            assert node_of(client) == "a"


async def test_who_asks_for_a_target_after_a_start_that_has_failed_does_not_wait_for_ever() -> None:
    balancer = BrokerBalancer("lb", pool=pool_of("a", quorum_timeout=1.0))
    broker = Broker("b", data_dir=None, services=[Slow(fails=True), balancer])
    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="it does not start"), flatten_subgroups=True):
        await broker.run()
    with trio.fail_after(10), pytest.raises(NotActiveError, match="'lb' is not served"):
        await balancer.target("key")
