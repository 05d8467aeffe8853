"""Bridges: messages of a queue here, carried to an address of another broker."""

from meshq.bridge._bridge import Bridge, BridgeStatistics

__all__ = ["Bridge", "BridgeStatistics"]
