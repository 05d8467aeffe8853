"""``meshq COMMAND`` and ``python -m meshq COMMAND``: the commands of meshq."""

from __future__ import annotations

import sys

from meshq.errors import UsageError

USAGE = """\
usage: meshq COMMAND [options]

  run FILE           run the broker that a file describes, until SIGTERM or Ctrl-C
  check-config FILE  say of every key of such a file that is wrong where it stands
  explain-permissions FILE USER ADDRESS
                     say what a user may do at an address, and by which roles and pattern
  quorum run NAME    run a witness of a quorum, until SIGTERM or Ctrl-C
  quorum show URL…   print the record of each node id, and what each witness has of it
  store claim DIR    say whether another copy of a store may be newer, and let its node serve
  new-test [PATH]    print a test of a program with a cluster of brokers, or write it to a new file
  demo               send real flights through a cluster, kill two nodes, and account for every one

Each says more with --help.  The journal's own command is python -m meshq.store.
"""


def main(arguments: list[str]) -> int:
    """Carry out a command; returns the exit status."""
    if arguments[:1] == ["demo"]:
        from meshq.demo import main as demo

        return demo(arguments[1:])
    if arguments[:1] == ["new-test"]:
        from meshq.testing.new_test import main as new_test

        return new_test(arguments[1:])
    if arguments[:1] in (["run"], ["check-config"], ["explain-permissions"], ["quorum"], ["store"]):
        try:
            from meshq.cli import main as cli

            return cli(arguments)
        except UsageError as error:
            print(error, file=sys.stderr)
            return 2
    asked = bool(arguments) and arguments[0] in ("-h", "--help")
    print(USAGE, end="", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def command() -> int:
    """The command ``meshq``."""
    try:
        return main(sys.argv[1:])
    except KeyboardInterrupt:
        # Ctrl-C before the command has begun, or when it has ended: nothing is left behind in either case.
        return 130


if __name__ == "__main__":
    sys.exit(command())
