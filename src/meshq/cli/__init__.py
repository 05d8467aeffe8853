"""The command line: a broker from a file, and a look at the file alone."""

from meshq.cli._main import main

__all__ = ["main"]
