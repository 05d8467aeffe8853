"""The broker that ``meshq_server`` gives to tests of every framework."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshq
from meshq.testing.kit._server import ServerInThread


def test_what_it_has_confirmed_is_there_when_it_was_killed_and_started_again(tmp_path: Path) -> None:
    with ServerInThread(str(tmp_path / "data"), {}) as server:
        url = server.url
        with server.client() as client:
            client.send("orders", b"x")
            server.kill()
            with pytest.raises(meshq.UsageError, match="restart"):
                server.broker.statistics()
            server.restart()
            # The same client, over a new connection.
            client.send("orders", b"y")
        assert server.urls == [url]
        with server.broker.client() as client, client.consumer("orders") as consumer:
            assert [delivery.body for delivery in consumer.receive_many(10, timeout=5)] == [b"x", b"y"]
        server.restart()
        assert server.broker.state == "active"


def test_the_settings_are_those_of_a_broker(tmp_path: Path) -> None:
    with ServerInThread(str(tmp_path / "data"), {"queues": ["q"], "data_dir": None}) as server:
        assert not server.broker.durable
        with server.client() as client:
            assert client.queues() == ["q"]
