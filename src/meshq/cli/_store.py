"""``meshq store claim``: a look at a stopped store, and the permission to serve."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from meshq.cli._failed import FailedError
from meshq.env import real_env
from meshq.errors import MeshqError
from meshq.ha import MARK_S, StoreClaim, doubts, told

#: The exit status when a newer copy is possible.
DOUBTED = 2


def store(options: argparse.Namespace) -> int:
    """Show the freshness of the store of a stopped node, and let the node serve."""
    env = real_env()
    disk = env.disk
    try:
        claims = [StoreClaim(disk, path) for path in (options.directory, *options.peer)]
        facts = [claim.look() for claim in claims]
        for claim, one in zip(claims, facts, strict=True):
            print("\n".join(told(one, claim.position(), _written(claim.store))))
        own, peers = facts[0], facts[1:]
        for peer in peers:
            if peer.node_id != own.node_id or peer.kind != own.kind:
                what = f"{peer.kind}, node id {peer.node_id or 'none yet'}"
                raise FailedError(f"{peer.directory} is no other copy of this store: {what}")
        found = doubts(own, peers)
        for doubt in found:
            print(f"a newer copy is possible: {doubt}")
        if not found:
            print("no other copy is newer" + (", of those that were given" if peers else ""))
        if not options.yes:
            return DOUBTED if found else 0
        claims[0].mark(env.wall.now_ms())
    except (MeshqError, OSError) as error:
        raise FailedError(str(error)) from error
    print(f"{own.directory} is claimed: the next start of its node serves, and makes every other copy older")
    if own.kind == "replicated":
        print(f"with a quorum provider the mark is good for {MARK_S:g} s, and until the counter of the quorum moves")
    return 0


def add_store(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``meshq store``."""
    tasks = command.add_subparsers(dest="task", required=True)
    text = "Print what a store knows, and whether another copy may be newer; with --yes the next start asks nobody."
    claim = tasks.add_parser("claim", help=text, description=text)
    claim.add_argument("directory", metavar="DIR", help="the data_dir of a node that is stopped")
    claim.add_argument("--peer", action="append", default=[], metavar="DIR", help="of another node; give those of all")
    claim.add_argument("--yes", action="store_true", help="claim the store; any other copy loses what only it has")


def _written(directory: str) -> str:
    times = [path.stat().st_mtime for path in (Path(directory) / "journal").glob("*")]
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(max(times))) if times else "no time that is known"
