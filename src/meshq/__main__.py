"""``python -m meshq COMMAND``: the commands of meshq."""

from __future__ import annotations

import sys

USAGE = """\
usage: python -m meshq demo [options]

  demo    send real flights through a cluster, kill two nodes, and account for every one (--help says more)

The journal's own command is python -m meshq.store.
"""


def main(arguments: list[str]) -> int:
    """Carry out a command; returns the exit status."""
    if arguments[:1] == ["demo"]:
        from meshq.demo import main as demo

        return demo(arguments[1:])
    asked = bool(arguments) and arguments[0] in ("-h", "--help")
    print(USAGE, end="", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    except KeyboardInterrupt:
        # Ctrl-C before the command has begun, or when it has ended: nothing is left behind in either case.
        status = 130
    sys.exit(status)
