"""The demo's command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

import attrs

from meshq.demo._discovery import DIRECTORY, GROUP, MULTICAST, Discovery
from meshq.demo._kill_plan import (
    DELIVERED_MIN,
    FIRST_KILLED,
    NODES,
    NODES_MAX,
    PRODUCER_NODE,
    READY_MIN,
    ROWS_MIN,
    ROWS_PER_NODE_MIN,
    WAITING_MIN,
    rows_min,
)
from meshq.demo._move_plan import MOVING_NODES, MOVING_NODES_MIN, moving_rows_min
from meshq.errors import SettingsError

_DESCRIPTION: Final = (
    "Send the flights that left New York in 2013 as durable messages to a cluster of broker nodes, receive them on "
    "every node, lose two nodes to SIGKILL, and account for every flight."
)
_EPILOG: Final = (
    "The exit status is 0 if nothing was lost, nothing came twice and every number equals the file's own; 1 if "
    "something differs, which is named; 2 if the command line is wrong; 130 after Ctrl-C."
)


@attrs.frozen(kw_only=True)
class Options:
    """The options of the demo."""

    nodes: int = NODES
    #: The first so many flights of the file; None for all.
    rows: int | None = None
    kill: bool = True
    #: The node that the first kill takes; None for the second one, or the only one.
    first_killed: int | None = None
    #: How the nodes find each other; None: each is told the ports of all.
    discover: Discovery | None = None
    json: bool = False
    data_dir: str | None = None

    @property
    def moves(self) -> bool:
        """Whether consumers move and a node leaves for good, after both kills."""
        return self.discover is not None and self.kill

    @property
    def rows_min(self) -> int:
        """The fewest rows for which every step can be made."""
        return moving_rows_min(self.nodes) if self.moves else rows_min(self.nodes)

    @property
    def killed_first(self) -> int:
        """The node that is killed first."""
        if self.first_killed is not None:
            return self.first_killed
        return FIRST_KILLED if self.nodes > 1 else PRODUCER_NODE


def parse_options(arguments: Sequence[str]) -> Options:
    """Options from a command line; ``--help`` and unreadable ones end the program, as ``argparse`` does.

    Raises:
        SettingsError: a value isn't allowed.
    """
    parser = argparse.ArgumentParser(
        prog="python -m meshq demo", description=_DESCRIPTION, epilog=_EPILOG, allow_abbrev=False
    )
    parser.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help=f"broker nodes, 1 to {NODES_MAX} ({NODES}, and {MOVING_NODES} with --discover): in a cluster with one "
        f"consumer each, the producer on node {PRODUCER_NODE}; a single one has three consumers and takes both kills",
    )
    parser.add_argument(
        "--rows",
        type=int,
        metavar="N",
        help=f"the first N flights only; at least {ROWS_MIN:,}, or {ROWS_PER_NODE_MIN:,} for each node if that is "
        f"more, unless --no-kill, because each kill waits until {DELIVERED_MIN:,} messages are delivered and "
        f"unacknowledged and {READY_MIN:,} are ready (one node), or {WAITING_MIN:,} wait on node {PRODUCER_NODE} for "
        "the one that is killed (a cluster, first kill)",
    )
    parser.add_argument(
        "--kill",
        dest="first_killed",
        type=int,
        metavar="NODE",
        help=f"the node that the first kill takes, {FIRST_KILLED} (the default) to N; the second takes node "
        f"{PRODUCER_NODE}, the producer's own",
    )
    parser.add_argument("--no-kill", dest="kill", action="store_false", help="let all nodes live")
    parser.add_argument(
        "--discover",
        nargs="?",
        const=MULTICAST,
        choices=(MULTICAST, DIRECTORY),
        help=f"tell the nodes nothing of each other: they meet in the multicast group {GROUP} on the loopback "
        "interface (multicast, if nothing is said), or in a shared directory (directory); a node that was killed comes "
        "back at another port for the other nodes. After both kills consumers move from node to node, so that what "
        "they leave behind has to follow, and the last node leaves for good, with its backlog, a prepared transaction "
        f"and large messages; {MOVING_NODES_MIN} nodes at least",
    )
    _add_other_demos(parser)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument(
        "--data-dir", metavar="DIR", help="keep the nodes' data in DIR, which must be empty or missing, and leave it"
    )
    given = vars(parser.parse_args(arguments))
    del given["balancer"], given["ha"], given["network"], given["spark"]
    if given["nodes"] is None:
        given["nodes"] = NODES if given["discover"] is None else MOVING_NODES
    options = Options(**given)
    check_options(options)
    return options


def _add_other_demos(parser: argparse.ArgumentParser) -> None:
    """Name the options that show something else; they are taken before these are read."""
    parser.add_argument(
        "--balancer",
        action="store_true",
        help="show balancers instead, with --devices N and no other option: a front sends devices to four targets, "
        "of which one is killed",
    )
    parser.add_argument(
        "--ha",
        metavar="WAY",
        help="show backups instead, with --rows N and no other option: of two nodes with one store (shared-store) the "
        "one that serves is killed, comes back, and is stopped for longer than its lease; or the same of two pairs in "
        "a cluster, in which each node has a store of its own (replication), and with three witnesses that say who "
        "serves (quorum)",
    )
    parser.add_argument(
        "--network",
        action="store_true",
        help="show a network of brokers instead, with --rows N and no other option: two hubs with their spokes, and a "
        "slow link between the hubs; consumers move, and a hub is killed and comes back",
    )
    parser.add_argument(
        "--spark",
        action="store_true",
        help="show Spark instead, with --rows N, --seed N and no other option: a query reads three nodes, computes "
        "delays by hour and carrier, and sends alerts; the query and a node are killed on the way",
    )


def check_options(options: Options) -> None:
    """Raises: SettingsError: a value isn't allowed."""
    nodes, rows = options.nodes, options.rows
    if not 1 <= nodes <= NODES_MAX:
        raise SettingsError("nodes", nodes, f"1 to {NODES_MAX}")
    if options.discover is not None and nodes < MOVING_NODES_MIN:
        raise SettingsError("discover", options.discover, f"with {MOVING_NODES_MIN} nodes or more")
    _check_killed(options)
    if rows is None:
        return
    if rows < 1:
        raise SettingsError("rows", rows, "a whole number from 1")
    least = options.rows_min
    if options.kill and rows < least:
        steps = "the kills and moves require" if options.moves else "both kills require"
        allowed = f"{least} or more, for fewer can't fill the queues as {steps}; or any with --no-kill"
        raise SettingsError("rows", rows, allowed)


def _check_killed(options: Options) -> None:
    killed, nodes = options.first_killed, options.nodes
    if killed is None:
        return
    if not options.kill:
        raise SettingsError("kill", killed, "nothing with --no-kill")
    if nodes == 1 and killed != PRODUCER_NODE:
        raise SettingsError("kill", killed, f"{PRODUCER_NODE}, the only node")
    if nodes > 1 and not FIRST_KILLED <= killed <= nodes:
        which = str(FIRST_KILLED) if nodes == FIRST_KILLED else f"{FIRST_KILLED} to {nodes}"
        raise SettingsError("kill", killed, f"{which}; node {PRODUCER_NODE}, the producer's own, is killed second")
