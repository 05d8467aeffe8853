"""A data directory that was copied, or restored from a copy: what its node sends from then on is lost to nobody."""

from __future__ import annotations

import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from meshq import AddressSettings
from tests.cluster.kit import PATIENCE_S, Mesh, bodies, mesh, until


def events(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    """What was warned of."""
    return [str(getattr(one, "event", "")) for one in caplog.records if one.levelno >= level]


async def send_over(nodes: Mesh, name: str, *sent: bytes) -> None:
    """Have a node send to the consumer of the node ``b``, and see that nothing waits for that node any more."""
    await nodes.known(name).wait_for(nodes=2, queue="q", consumers=1, timeout=PATIENCE_S)
    await nodes.send(name, sent)
    await until(lambda: all(not peer.waiting for peer in nodes.known(name).peers()))


@asynccontextmanager
async def nodes_with_a_consumer(root: Path) -> AsyncIterator[tuple[Mesh, list[bytes]]]:
    """Two nodes, and what a consumer of the node ``b`` gets."""
    async with mesh("ab", root=root) as nodes, nodes.client("b") as client:
        await client.create_queue("q")
        async with client.consumer("q") as consumer, trio.open_nursery() as nursery:
            got: list[bytes] = []

            async def take() -> None:
                async for delivery in consumer:
                    got.extend(bodies([delivery]))
                    await delivery.ack()

            nursery.start_soon(take)
            yield nodes, got
            nursery.cancel_scope.cancel()


async def copied(nodes: Mesh, root: Path, *, to: str) -> None:
    """Copy the directory of the node ``a`` while it is stopped."""
    await nodes.stop("a")
    shutil.copytree(root / "a", root / to)


@pytest.mark.slow
async def test_a_node_whose_directory_is_restored_from_a_copy_loses_nothing_that_it_sends_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with nodes_with_a_consumer(tmp_path) as (nodes, got):
        await send_over(nodes, "a", b"1", b"2")
        await copied(nodes, tmp_path, to="copy")
        await nodes.start("a")
        await send_over(nodes, "a", *[b"%d" % number for number in range(3, 13)])
        await nodes.stop("a")
        assert "store_is_a_copy" not in events(caplog)
        shutil.rmtree(tmp_path / "a")
        (tmp_path / "copy").rename(tmp_path / "a")
        await nodes.start("a")
        await send_over(nodes, "a", b"after 1", b"after 2")
        assert got == [b"%d" % number for number in range(1, 13)] + [b"after 1", b"after 2"]
        # The link's new name holds in later lives, too.
        await nodes.kill("a")
        await nodes.start("a")
        await send_over(nodes, "a", b"after 3")
        assert got[12:] == [b"after 1", b"after 2", b"after 3"]
    assert events(caplog).count("store_is_a_copy") == 1
    assert "node b at inproc://b has stored messages of this node up to number 12" in caplog.text


@pytest.mark.slow
async def test_a_restored_node_whose_later_messages_went_over_a_branch_only_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The link's own number is the one of the copy: only that of the branch tells."""
    full = AddressSettings(full_policy="block", max_size_messages=10)
    own = {
        "a": {"address_settings": {"#": AddressSettings(auto_create_queues=False)}},
        "b": {"address_settings": {"q": full}},
    }
    async with mesh("ab", root=tmp_path, mode="strict", own=own) as nodes:
        async with nodes.client("b") as client:
            await client.create_queue("q")
        await nodes.known("a").wait_for(queue="q", timeout=PATIENCE_S)
        await nodes.send("a", [b"%d" % number for number in range(10)])
        await until(lambda: not any(peer.waiting for peer in nodes.known("a").peers()))
        await copied(nodes, tmp_path, to="copy")
        await nodes.start("a")
        await nodes.known("a").wait_for(queue="q", timeout=PATIENCE_S)
        await nodes.send("a", [b"%d" % number for number in range(10, 50)])
        async with nodes.client("b") as client, client.consumer("q", window=1) as consumer:
            for number in range(20):
                delivery = await consumer.receive(timeout=PATIENCE_S)
                assert delivery is not None and delivery.body == b"%d" % number
                await delivery.ack()
        await until(lambda: sum(peer.waiting for peer in nodes.known("a").peers()) == 20)
        await nodes.stop("a")
        shutil.rmtree(tmp_path / "a")
        (tmp_path / "copy").rename(tmp_path / "a")
        await nodes.start("a")
        await nodes.known("a").wait_for(queue="q", timeout=PATIENCE_S)
        after = [b"after 1", b"after 2"]
        await nodes.send("a", after)
        assert bodies(await nodes.drain("b"))[10:] == after
    assert events(caplog).count("store_is_a_copy") == 1


@pytest.mark.slow
async def test_of_two_nodes_with_copies_of_one_directory_the_second_is_refused_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with nodes_with_a_consumer(tmp_path) as (nodes, got):
        await send_over(nodes, "a", b"1")
        await copied(nodes, tmp_path, to="twin")
        await nodes.start("a")
        await nodes.joined("a", "b")
        nodes.urls["twin"] = "inproc://twin"
        nodes.others["twin"] = ["b"]
        await nodes.start("twin")
        await until(lambda: "duplicate_node" in events(caplog))
        assert "'twin' at 'inproc://twin' has the id of the node at 'inproc://a'" in caplog.text
        await nodes.send("twin", [b"of the twin"])
        await send_over(nodes, "a", b"2")
        assert got == [b"1", b"2"]
        # What the twin has taken waits at the twin.
        assert list((await nodes.left("twin")).values()) == [1]
