"""``meshq run``, ``meshq check-config``, ``meshq explain-permissions``, ``meshq quorum`` and ``meshq store``.

Exit status: 0 when all is well, 1 when the file is wrong or the broker has failed, 2 when the command was called
wrongly, or when a newer copy of a store is possible; 128 and the signal's number when a second signal did not wait for
a clean stop.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from typing import Final

import trio

from meshq.cli._failed import FailedError
from meshq.cli._quorum import add_quorum, quorum
from meshq.cli._serving import serve
from meshq.cli._store import add_store, store
from meshq.config import dump_config, load_broker, load_nodes
from meshq.errors import ConfigError, SettingsError


def main(arguments: list[str]) -> int:
    """Carry out a command; returns the exit status."""
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as end:
        # The parser has said what is wrong, or has helped.
        return end.code if isinstance(end.code, int) else 2
    try:
        status = COMMANDS[options.command](options)
    except (ConfigError, SettingsError) as error:
        print(error, file=sys.stderr)
        return 1
    except FailedError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return status or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="meshq", description="meshq: a durable message broker.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, function in COMMANDS.items():
        text = function.__doc__ or ""
        command = commands.add_parser(name, help=text.partition("\n")[0], description=text)
        if function is quorum:
            add_quorum(command)
            continue
        if function is store:
            add_store(command)
            continue
        command.add_argument("file", metavar="FILE")
        if function is check_config:
            command.add_argument("--print", action="store_true", help="print the file as it is understood")
        if function is explain_permissions:
            command.add_argument("user", metavar="USER")
            command.add_argument("address", metavar="ADDRESS")
    return parser


def run(options: argparse.Namespace) -> None:
    """Run the broker that FILE describes, and the witness of its table [quorum], until SIGTERM or Ctrl-C.

    The first signal stops it cleanly, within its stop_timeout; a second one at once.
    """
    nodes = load_nodes(options.file)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    failure = trio.run(serve, nodes)
    if failure is not None:
        raise FailedError(str(failure)) from failure


def check_config(options: argparse.Namespace) -> None:
    """Name every wrong key of FILE with its line and the values that are allowed.

    Secrets, certificates, keys and authorities that FILE names are read, too.  With --print, write FILE anew without
    defaults, older spellings and secrets: each of these is the name of a variable.
    """
    nodes = load_nodes(options.file, files=True)
    if options.print:
        print(dump_config(*nodes), end="")
    for node in () if options.print else nodes:
        print(f"{options.file}: {node!r}")


def explain_permissions(options: argparse.Namespace) -> None:
    """Explain the permissions of USER at ADDRESS in the broker of FILE: the roles and the pattern that give them.

    A queue is judged by its address.
    """
    security = load_broker(options.file).security
    if security is None:
        print("everybody may do everything: the broker has no users")
    else:
        print(security.explain(options.user, options.address))


COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int | None]]] = {
    "run": run,
    "check-config": check_config,
    "explain-permissions": explain_permissions,
    "quorum": quorum,
    "store": store,
}
