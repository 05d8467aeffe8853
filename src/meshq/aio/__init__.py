"""The client and the broker for asyncio: same names, defaults and errors."""

from meshq.aio._balancer import BrokerBalancer, ClientBalancer
from meshq.aio._body_stream import BodyStream
from meshq.aio._broker import Broker
from meshq.aio._client import Client
from meshq.aio._cluster import ClusterConnection, NetworkConnector
from meshq.aio._consumer import Consumer
from meshq.aio._cursor import Cursor
from meshq.aio._delivery import Delivery
from meshq.aio._events import EventStream
from meshq.aio._factory import ClientFactory, connect
from meshq.aio._high_availability import HighAvailability, ReplicaStore
from meshq.aio._producer import Producer
from meshq.aio._transaction import Transaction

__all__ = [
    "BodyStream",
    "Broker",
    "BrokerBalancer",
    "Client",
    "ClientBalancer",
    "ClientFactory",
    "ClusterConnection",
    "Consumer",
    "Cursor",
    "Delivery",
    "EventStream",
    "HighAvailability",
    "NetworkConnector",
    "Producer",
    "ReplicaStore",
    "Transaction",
    "connect",
]
