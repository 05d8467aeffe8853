"""Data that was copied from node to node is noticed, and a configuration that was copied is fine."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
import trio

from tests.cluster.kit import mesh


async def test_a_node_on_a_copied_data_directory_is_named_and_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with mesh("ab", root=tmp_path) as nodes:
        await nodes.send("a", [b"1", b"2"])
        await nodes.stop("a", "b")
        shutil.rmtree(tmp_path / "b")
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        await nodes.start("a", "b")
        await trio.sleep(1)
        assert nodes.brokers["a"].node_id == nodes.brokers["b"].node_id
        assert [nodes.known(name).nodes() for name in "ab"] == [1, 1]
        assert [[peer.connected for peer in nodes.known(name).peers()] for name in "ab"] == [[False], [False]]
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors
    assert all("is its data directory a copy of this node's?" in text and "'a'" in text for text in errors)
    assert all("'b'" in text for text in errors)


async def test_nodes_of_one_configuration_with_directories_of_their_own_are_two_nodes(tmp_path: Path) -> None:
    async with mesh("ab", root=tmp_path) as nodes:
        await nodes.joined()
        assert nodes.brokers["a"].node_id != nodes.brokers["b"].node_id
