"""The demo: real flights through a cluster that loses two nodes to SIGKILL, and every one of them accounted for."""

from meshq.demo._main import main

__all__ = ["main"]
