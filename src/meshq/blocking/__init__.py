"""The broker and the client without async, for threads and scripts: same names, defaults and errors."""

from meshq.blocking._balancer import BrokerBalancer, ClientBalancer
from meshq.blocking._body_stream import BodyStream
from meshq.blocking._broker import Broker
from meshq.blocking._client import Client
from meshq.blocking._cluster import ClusterConnection, NetworkConnector
from meshq.blocking._consumer import Consumer
from meshq.blocking._cursor import Cursor
from meshq.blocking._delivery import Delivery
from meshq.blocking._events import EventStream
from meshq.blocking._factory import ClientFactory, connect
from meshq.blocking._high_availability import HighAvailability, ReplicaStore
from meshq.blocking._producer import Producer
from meshq.blocking._transaction import Transaction

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
