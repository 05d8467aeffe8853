"""Bridges: messages of a queue here, carried to an address of another broker."""

from meshq.bridge._bridge import Bridge, BridgeStatistics
from meshq.bridge._link_settings import LinkSettings

__all__ = ["Bridge", "BridgeStatistics", "LinkSettings"]
