"""The broker and the client without async, for threads and scripts: same names, defaults and errors.

What belongs to a broker is loaded when it is first used: a program that has only a client starts sooner.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from meshq.blocking._body_stream import BodyStream
from meshq.blocking._client import Client
from meshq.blocking._client_balancer import ClientBalancer
from meshq.blocking._consumer import Consumer
from meshq.blocking._cursor import Cursor
from meshq.blocking._delivery import Delivery
from meshq.blocking._events import EventStream
from meshq.blocking._factory import ClientFactory, connect
from meshq.blocking._producer import Producer
from meshq.blocking._transaction import Transaction

if TYPE_CHECKING:
    from meshq.blocking._balancer import BrokerBalancer as BrokerBalancer
    from meshq.blocking._broker import Broker as Broker
    from meshq.blocking._cluster import ClusterConnection as ClusterConnection

_HOME: Final = {
    "Broker": "meshq.blocking._broker",
    "BrokerBalancer": "meshq.blocking._balancer",
    "ClusterConnection": "meshq.blocking._cluster",
}

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
    "Producer",
    "Transaction",
    "connect",
]


def __getattr__(name: str) -> Any:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'meshq.blocking' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
