"""Bridges: messages of a queue here, carried to an address of another broker."""

from meshq.bridge._bridge import Bridge
from meshq.bridge._link_settings import LinkOptions, LinkSettings
from meshq.statistics import BridgeStatistics

__all__ = ["Bridge", "BridgeStatistics", "LinkOptions", "LinkSettings"]
