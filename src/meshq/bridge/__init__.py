"""Bridges: messages of a queue here, carried to an address of another broker."""

from meshq.bridge._bridge import Bridge
from meshq.bridge._forwarder import BridgeCounts, Forwarder
from meshq.bridge._forwarding_plan import DeliveryIds, bridged_id
from meshq.bridge._link_settings import LinkOptions, LinkSettings
from meshq.bridge._settings import BridgeSettings
from meshq.statistics import BridgeStatistics

__all__ = [
    "Bridge",
    "BridgeCounts",
    "BridgeSettings",
    "BridgeStatistics",
    "DeliveryIds",
    "Forwarder",
    "LinkOptions",
    "LinkSettings",
    "bridged_id",
]
