"""The client: connections that come back, sessions, producers, consumers."""

from meshq.client._block import Block
from meshq.client._client import Client
from meshq.client._consumer import Consumer, ConsumerStatistics
from meshq.client._delivery import Delivery
from meshq.client._events import Connected, Disconnected, Event, EventStream, FailedOver, Reattached
from meshq.client._factory import ClientFactory, connect
from meshq.client._peer_line import ForwardedRun, PeerEvents
from meshq.client._peer_link import PeerLink
from meshq.client._producer import Producer, ProducerStatistics
from meshq.client._settings import ClientSettings
from meshq.client._statistics import ClientStatistics, QueueStatistics

__all__ = [
    "Block",
    "Client",
    "ClientFactory",
    "ClientSettings",
    "ClientStatistics",
    "Connected",
    "Consumer",
    "ConsumerStatistics",
    "Delivery",
    "Disconnected",
    "Event",
    "EventStream",
    "FailedOver",
    "ForwardedRun",
    "PeerEvents",
    "PeerLink",
    "Producer",
    "ProducerStatistics",
    "QueueStatistics",
    "Reattached",
    "connect",
]
