"""Logs name other nodes by their names, and say where they are; one that was never met is named by its URL."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import trio

from tests.cluster.kit import Mesh, mesh, until


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever any part of meshq says."""
    with caplog.at_level(logging.DEBUG, "meshq"):
        yield


def texts(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """What was said of an event."""
    return [one.getMessage() for one in caplog.records if getattr(one, "event", "") == event]


def check_no_hex(nodes: Mesh, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody has to look up who a number is."""
    ids = [bytes(broker.node_id).hex() for broker in nodes.brokers.values()]
    said = [one.getMessage() for one in caplog.records]
    assert said and not [text for text in said if any(node_id in text for node_id in ids)]


async def test_a_node_that_is_linked_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with mesh("ab") as nodes:
        await nodes.joined()
        assert "the queues of node b at inproc://b are known" in texts(caplog, "peer_known")
        check_no_hex(nodes, caplog)


async def test_a_node_that_is_lost_is_named_as_long_as_it_is_away(caplog: pytest.LogCaptureFixture) -> None:
    async with mesh("ab", cluster={"reconnect_attempts": 2, "retry_interval": 0.01}) as nodes:
        await nodes.joined()
        await nodes.kill("b")
        await until(lambda: bool(texts(caplog, "peer_down")))
        (text,) = texts(caplog, "peer_down")
        assert text.startswith("node b at inproc://b is given up: ")
        lost = [text for text in texts(caplog, "client_disconnected") if text.startswith("Disconnected: inproc://b")]
        assert lost[0].startswith("Disconnected: inproc://b, node b (")
        check_no_hex(nodes, caplog)


async def test_a_node_that_is_away_or_has_left_is_said_to_be_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async with mesh("ab", cluster={"retry_interval": 0.01}) as nodes:
        await nodes.joined()
        caplog.clear()
        await nodes.kill("b")
        await until(lambda: bool(texts(caplog, "peer_away")))
        await nodes.start("b")
        await nodes.joined()
        await nodes.stop("b")
        await until(lambda: bool(texts(caplog, "peer_left")))
        await trio.sleep(5)
        (away,) = texts(caplog, "peer_away")
        assert away.startswith("node b at inproc://b is away: ")
        assert texts(caplog, "peer_left") == ["node b at inproc://b has left: the node 'b' is stopping"]


async def test_a_node_that_was_never_met_is_named_by_its_url(caplog: pytest.LogCaptureFixture) -> None:
    others = {"a": ["inproc://nobody"]}
    async with mesh("a", others=others, cluster={"initial_connect_attempts": 2, "reconnect_attempts": 2}):
        await until(lambda: bool(texts(caplog, "peer_down")))
        assert texts(caplog, "peer_down")[0].startswith("the node at inproc://nobody is given up: ")


async def test_a_node_that_is_reached_twice_is_named_with_both_urls(caplog: pytest.LogCaptureFixture) -> None:
    async with mesh("ab", others={"a": ["inproc://b", "inproc://x"], "b": []}) as nodes:
        # One node behind two URLs: the second of them is a spare.
        nodes.env.local["x"] = nodes.env.local["b"]
        await until(lambda: bool(texts(caplog, "peer_twice")))
        (text,) = set(texts(caplog, "peer_twice"))
        one, other = ("b", "x") if "node b at inproc://x" in text else ("x", "b")
        assert text == f"the connector inproc://{one} is used when the other one of node b at inproc://{other} fails"
        check_no_hex(nodes, caplog)
