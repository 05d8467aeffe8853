"""What a balancer says when it is asked: in the program of its broker and over a connection."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio

from meshq import (
    BrokerBalancer,
    NotActiveError,
    NotFoundError,
    Permissions,
    Security,
    SecurityError,
    SettingsError,
    UseAnotherServerError,
)
from meshq.abc import BalancerTarget
from meshq.lb.balancer._broker_balancer import QUESTIONS_MAX
from tests.balancers.kit import balanced, machines, node_of, place, pool_of, url_of
from tests.cluster.kit import until


async def test_a_client_that_can_not_be_redirected_asks_and_goes_there_or_asks_again() -> None:
    async with machines() as made:
        pool = pool_of("a", quorum_timeout=0.5)
        await made.start("front", BrokerBalancer("lb", target_key="client_id", pool=pool), redirect_to="lb")
        async with made.dial(url_of("front")) as client:
            began = trio.current_time()
            assert await client.balancer("lb").target("till-7") is None
            assert 0.5 <= trio.current_time() - began < 0.6
            await made.start("a")
            while (found := await client.balancer("lb").target("till-7")) is None:
                pass
            node_id = bytes(made.brokers["a"].node_id or b"").hex()
            assert found == BalancerTarget(url=url_of("a"), node_id=node_id)
        async with made.dial(found.url, client_id="till-7") as client:
            assert node_of(client) == "a"
        assert await place(made, "till-7") == "a"


async def test_the_broker_itself_is_a_target_that_can_be_dialed() -> None:
    async with machines() as made:
        balancer = BrokerBalancer("lb", pool=pool_of("a", local_target_enabled=True), policy="round_robin")
        await made.start("front", balancer, redirect_to="lb")
        await made.ready("front")
        found = await made.balancer().target("x")
        node_id = bytes(made.brokers["front"].node_id or b"").hex()
        assert found == BalancerTarget(url=url_of("front"), node_id=node_id, local=True)


async def test_a_key_that_stays_is_answered_with_the_place_and_the_node_of_the_broker_itself() -> None:
    async with machines() as made:
        for name, pool in (("front", pool_of("a")), ("alone", None)):
            balancer = BrokerBalancer("lb", local_target_filter="^ops.*", pool=pool)
            broker = await made.start(name, balancer, redirect_to="lb")
            own = BalancerTarget(url=url_of(name), node_id=bytes(broker.node_id or b"").hex(), local=True)
            assert await made.balancer(broker=name).target("ops-1") == own


@pytest.mark.parametrize("key", [None, 5, b"ops"])
async def test_a_key_that_is_no_text_is_refused_by_name(key: Any) -> None:
    async with balanced("a") as made:
        with pytest.raises(SettingsError, match=r"key=.* is not allowed; allowed: a text"):
            await made.balancer().target(key)
        with pytest.raises(SettingsError, match=r"key=.* is not allowed; allowed: a text"):
            made.balancer().explain_route(key)


async def test_a_decision_is_explained_step_by_step_in_process_and_over_a_connection() -> None:
    async with balanced(target_key="client_id", target_key_filter="^.{3}", local_target_filter="^ops.*") as made:
        there = await place(made, "FOO123")
        url = url_of(there)
        async with made.dial(url_of("front")) as client:
            for asked in (made.balancer().explain_route("FOO999"), await client.balancer("lb").explain_route("FOO999")):
                assert (asked.key, asked.outcome, asked.url) == ("FOO", "remote", url)
                assert asked.steps == (
                    "the key is 'FOO'",
                    "the local filter '^ops.*' does not match it",
                    f"the cache has {url}, which is ready",
                )
            here = await client.balancer("lb").explain_route("ops-1")
            assert (here.key, here.outcome, here.url) == ("ops", "local", "")
            before = made.balancer().statistics()
            assert await client.balancer("lb").statistics() == before
        assert (before.name, before.target_key, before.policy, before.active) == (
            "lb",
            "client_id",
            "RoundRobin()",
            True,
        )
        assert (before.ready, before.keys, before.redirected, before.quorum_size) == (3, 1, 1, 1)
        assert [row.keys for row in before.targets if row.node_name == there] == [1]


async def test_a_trace_shows_the_key_and_the_order(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "meshq.lb"):
        async with balanced("a", target_key="client_id") as made:
            await place(made, "till-7")
            await place(made, "till-7")
    lines = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "client_balanced"]
    assert lines[0].startswith("lb: remote: the key is 'till-7'; the cache has no ready target for it; the pool has 1")
    assert lines[0].endswith(f"RoundRobin() chooses {url_of('a')}")
    assert lines[1] == f"lb: remote: the key is 'till-7'; the cache has {url_of('a')}, which is ready"


async def test_filters_are_changed_for_new_connections_while_the_broker_runs() -> None:
    async with (
        balanced("a", target_key="client_id") as made,
        made.dial(client_id="ops-1") as before,
        made.dial(url_of("front")) as operator,
    ):
        assert node_of(before) == "a"
        await operator.balancer("lb").set_local_target_filter("^ops.*")
        assert await place(made, "ops-1") == "front" and await place(made, "other") == "a"
        await operator.balancer("lb").set_target_key_filter("[0-9]+$")
        assert await place(made, "ops-1") == "a"
        assert made.balancer().explain_route("x-77").key == "77"
        await operator.balancer("lb").set_local_target_filter(None)
        made.balancer().set_target_key_filter(None)
        about = made.balancer().statistics()
        assert (about.target_key_filter, about.local_target_filter) == ("", "")
        with pytest.raises(SettingsError, match="begin it with"):
            made.balancer().set_target_key_filter("(a+)+b")
        with pytest.raises(Exception, match="begin it with") as caught:
            await operator.balancer("lb").set_local_target_filter("(a+)+b")
        assert getattr(caught.value, "outcome", "") == "not_done"
        assert node_of(before) == "a"
    with pytest.raises(NotActiveError):
        made.balancer().explain_route("x")


async def test_without_a_pool_the_filter_can_be_changed_and_not_be_taken_away() -> None:
    async with machines() as made:
        await made.start(
            "front", BrokerBalancer("lb", target_key="client_id", local_target_filter="a"), redirect_to="lb"
        )
        made.balancer().set_local_target_filter("b")
        assert await place(made, "b") == "front"
        with pytest.raises(UseAnotherServerError):
            await place(made, "a")
        with pytest.raises(SettingsError, match="where there is no pool"):
            made.balancer().set_local_target_filter(None)
        about = made.balancer().statistics()
        assert (about.accepted, about.refused, about.active, about.targets) == (1, 1, True, ())


async def test_only_who_may_manage_the_broker_sees_and_changes_a_balancer_and_all_may_ask_for_their_target() -> None:
    security = Security(
        users={"app": "canary-app", "ops": "canary-ops"},
        roles={"app": {"apps"}, "ops": {"operators"}},
        permissions={"#": Permissions(send={"apps"}, manage={"operators"})},
    )
    async with machines() as made:
        balancer = BrokerBalancer("lb", local_target_filter="here")
        await made.start("front", balancer, redirect_to="lb", security=security)
        async with made.dial(url_of("front"), user="app", password="canary-app") as client:
            found = client.balancer("lb")
            assert await found.target("x") is None
            for call in (found.statistics, lambda: found.explain_route("x"), lambda: found.set_target_key_filter("x")):
                with pytest.raises(SecurityError, match="'manage'"):
                    await call()
        async with made.dial(url_of("front"), user="ops", password="canary-ops") as client:
            assert (await client.balancer("lb").statistics()).name == "lb"
            with pytest.raises(NotFoundError, match="there is no balancer 'other'; known: 'lb'"):
                await client.balancer("other").target("x")
            for wrong in ("k" * 1_025, 7):
                with pytest.raises(SettingsError, match="key="):
                    await client.balancer("lb").target(wrong)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        made.brokers["front"].balancer("other")


async def test_questions_of_those_who_have_gone_are_bounded_in_number() -> None:
    async with machines() as made:
        await made.start("front", BrokerBalancer("lb", pool=pool_of("a", quorum_timeout=20.0)), redirect_to="lb")
        async with made.dial(url_of("front"), connection_ttl=1.0) as client, trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(client.balancer("lb").target, f"k{number}")
            await until(lambda: made.balancer().statistics().waiting == 20)
            nursery.cancel_scope.cancel()
        # Nobody takes their answers any more, and they wait for their time all the same.
        assert (made.brokers["front"].statistics().sessions, made.balancer().statistics().waiting) == (0, 20)
        answers: list[BalancerTarget | None] = []
        for number in range(QUESTIONS_MAX - 20):
            made.balancer().find_target(f"q{number}", answers.append)
        assert QUESTIONS_MAX == 4_096 == made.balancer().statistics().waiting and not answers
        made.balancer().find_target("one more", answers.append)
        assert answers == [None] and made.balancer().statistics().waiting == QUESTIONS_MAX
        await trio.sleep(21)
        assert len(answers) == QUESTIONS_MAX - 20 + 1 and made.balancer().statistics().waiting == 0
