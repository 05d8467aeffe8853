"""The demo: real flights through a broker that is killed twice, and every one of them accounted for."""

from meshq.demo._main import main

__all__ = ["main"]
