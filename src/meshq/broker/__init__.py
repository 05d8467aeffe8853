"""The core of a node: queues, routing, sessions.  What it is put together with stands in ``meshq.node``."""

from meshq.broker._connection import StreamConnection
from meshq.broker._connection_machine import ConnectionCounts, ServerConnection
from meshq.broker._consumer_state import ConsumerState, Grant
from meshq.broker._core import Core, CoreSettings
from meshq.broker._credentials import Credentials
from meshq.broker._deliveries import granted
from meshq.broker._distribution_plan import RemoteBinding
from meshq.broker._listener import Listeners
from meshq.broker._queue_machine import Queue
from meshq.broker._recovery import Recovery
from meshq.broker._sessions import Sessions

__all__ = [
    "ConnectionCounts",
    "ConsumerState",
    "Core",
    "CoreSettings",
    "Credentials",
    "Grant",
    "Listeners",
    "Queue",
    "Recovery",
    "RemoteBinding",
    "ServerConnection",
    "Sessions",
    "StreamConnection",
    "granted",
]
