"""``meshq new-test [PATH]``: the first test of a program with a cluster, to begin with."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

NEW_TEST: Final = '''\
"""An order survives the death of a node.  Run with: pytest; needs: pip install 'meshq[testing]'"""


async def test_an_order_survives_the_death_of_a_node(meshq_cluster):
    cluster = await meshq_cluster(nodes=3, queues=["orders"])
    async with cluster.client("n0") as client:
        await client.send("orders", b"42 umbrellas")
    cluster.kill("n0")  # as kill -9: no cleanup runs
    await cluster.restart("n0")
    await cluster.settled()  # until nothing moves any more
    async with cluster.client() as client, client.consumer("orders") as consumer:
        assert (await consumer.receive(timeout=30)).body == b"42 umbrellas"
'''


def main(arguments: list[str]) -> int:
    """Carry out the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="meshq new-test", description="Print a test with a cluster of three nodes, or write it to a new file."
    )
    parser.add_argument("path", metavar="PATH", nargs="?", help="the new file; without it the test is printed")
    try:
        path = parser.parse_args(arguments).path
    except SystemExit as end:
        # The parser has said what is wrong, or has helped.
        return end.code if isinstance(end.code, int) else 2
    if path is None:
        sys.stdout.write(NEW_TEST)
        return 0
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(NEW_TEST)
    except OSError as error:
        text = "it exists, and is never overwritten" if isinstance(error, FileExistsError) else error.strerror
        sys.stderr.write(f"{path}: {text}\n")
        return 1
    sys.stdout.write(f"{path}: run it with: pytest {path}\n")
    return 0
