"""The calls over a link of a cluster: how long they wait for an answer, and how long for a connection."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio

from meshq import CallTimeoutError
from meshq.broker.session._session_calls import SessionCalls
from meshq.wire import Frame, FrameType
from tests.cluster.test_settings_at_work import Machines, machines

#: The other node waits as long as a test wants.
PATIENT = {"call_timeout": 1_000.0, "connection_ttl": 2_000.0, "check_period": 500.0, "retry_interval": 0.1}


@pytest.fixture
def unanswered(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When nodes were asked to open a link; no answer goes out while the list is not closed with ``inf``."""
    asked: list[float] = []
    answering = SessionCalls.answering

    def answer(calls: SessionCalls, frame: Frame, *about: Any, **options: Any) -> None:
        if frame.type is FrameType.LINK and math.inf not in asked:
            asked.append(trio.current_time())
            return
        answering(calls, frame, *about, **options)

    monkeypatch.setattr(SessionCalls, "answering", answer)
    return asked


def error_of(nodes: Machines) -> Any:
    return nodes.known("a").peers()[0].error


@pytest.mark.parametrize("patience", [1.0, 30.0])
async def test_a_call_that_waits_through_a_failover_raises_after_call_failover_timeout(
    patience: float, unanswered: list[float]
) -> None:
    settings = {**PATIENT, "call_failover_timeout": patience}
    async with machines("ba", a=settings, b={**PATIENT, "static_connectors": []}) as nodes:
        await trio.sleep(100)
        assert (len(unanswered), error_of(nodes)) == (1, None)
        nodes.network.pause_host("b")
        nodes.network.reset("a", "b")
        lost = trio.current_time()
        await trio.sleep(patience - 0.05)
        assert not isinstance(error_of(nodes), CallTimeoutError)
        await trio.sleep(0.1)
        assert isinstance(error_of(nodes), CallTimeoutError)
        assert trio.current_time() - lost < patience + 0.1
        # The link is begun anew when the node is there again.
        unanswered.append(math.inf)
        nodes.network.resume_host("b")
        await nodes.known("a").wait_for(nodes=2, timeout=2_000)


async def test_unless_it_is_given_a_call_waits_through_a_failover_for_as_long_as_that_takes(
    unanswered: list[float],
) -> None:
    async with machines("ba", a=PATIENT, b={**PATIENT, "static_connectors": []}) as nodes:
        await trio.sleep(1)
        nodes.network.pause_host("b")
        nodes.network.reset("a", "b")
        await trio.sleep(900)
        assert error_of(nodes) is None
        assert nodes.known("a").peers()[0].state == "connecting"


async def test_a_node_that_leaves_the_opening_of_a_link_unanswered_is_given_up_after_call_timeout(
    unanswered: list[float],
) -> None:
    settings = {"call_timeout": 7.0, "call_failover_timeout": 1.0, "retry_interval": 0.5}
    async with machines("ba", a=settings, b={"static_connectors": []}) as nodes:
        await trio.sleep(6.5)
        assert (len(unanswered), error_of(nodes)) == (1, None)
        await trio.sleep(1)
        assert isinstance(error_of(nodes), CallTimeoutError)
        await trio.sleep(3)
        # In another session it is asked again.
        assert len(unanswered) == 2
        unanswered.append(math.inf)
        await nodes.known("a").wait_for(nodes=2, timeout=60)
        assert nodes.known("a").peers()[0].state == "linked"
