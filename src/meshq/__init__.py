"""meshq: a durable message broker that is a Python library.

Every public name is importable from here and loaded when it is first used: ``import meshq`` loads nothing
else.  The map of the layers, top first; imports go down only:

==========  ====================================================================================
layer       packages
==========  ====================================================================================
L7          ``demo``: two commands that show everything; ``testing``: the kit that others test with;
            ``cli``, ``config``: a broker from a file;
            ``blocking``, ``aio``: broker and client without async, and for asyncio; ``portal``: the
            common part of both, a trio loop in a thread
L6          ``node``: ``Broker``, one node put together
L4          ``cluster``: membership, remote bindings, forwarding between nodes
L4          ``network``: forwards messages to demand at other brokers
L3          ``bridge``: forwards the messages of a queue to another broker
L2          ``broker``: queues, routing, sessions; ``client``: connections, failover; ``discovery``:
            announcements of nodes
L1          ``store``: the journal; ``wire``: frames without I/O
L0          ``abc``: every interface; ``env``: the real outside world
vocabulary  ``errors``, ``limits``, ``ids``, ``message``, ``selector``, ``address``, ``settings``
==========  ====================================================================================

``broker`` and ``client`` don't know each other: what they share is ``wire`` and the vocabulary.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from meshq.abc import BalancerPolicy as BalancerPolicy
    from meshq.abc import BalancerTarget as BalancerTarget
    from meshq.abc import Difference as Difference
    from meshq.abc import RoleMember as RoleMember
    from meshq.bridge import Bridge as Bridge
    from meshq.bridge import BridgeStatistics as BridgeStatistics
    from meshq.client import BatchCommit as BatchCommit
    from meshq.client import BodyStream as BodyStream
    from meshq.client import Client as Client
    from meshq.client import ClientBalancer as ClientBalancer
    from meshq.client import ClientFactory as ClientFactory
    from meshq.client import ClientSettings as ClientSettings
    from meshq.client import ClientStatistics as ClientStatistics
    from meshq.client import ClusteredConsumer as ClusteredConsumer
    from meshq.client import ClusterQueue as ClusterQueue
    from meshq.client import Connected as Connected
    from meshq.client import ConnectionEvent as ConnectionEvent
    from meshq.client import Consumer as Consumer
    from meshq.client import ConsumerStatistics as ConsumerStatistics
    from meshq.client import Cursor as Cursor
    from meshq.client import CursorLag as CursorLag
    from meshq.client import CursorStatistics as CursorStatistics
    from meshq.client import Delivery as Delivery
    from meshq.client import Disconnected as Disconnected
    from meshq.client import Divert as Divert
    from meshq.client import EventStream as EventStream
    from meshq.client import FailedOver as FailedOver
    from meshq.client import FanoutClient as FanoutClient
    from meshq.client import FanoutMissed as FanoutMissed
    from meshq.client import InFlightMessages as InFlightMessages
    from meshq.client import MessageHop as MessageHop
    from meshq.client import MessageLocation as MessageLocation
    from meshq.client import MessageRoute as MessageRoute
    from meshq.client import MessageRouteStep as MessageRouteStep
    from meshq.client import MessageTrace as MessageTrace
    from meshq.client import NodeRoute as NodeRoute
    from meshq.client import PreparedTransaction as PreparedTransaction
    from meshq.client import Producer as Producer
    from meshq.client import ProducerStatistics as ProducerStatistics
    from meshq.client import QueueOnNode as QueueOnNode
    from meshq.client import QueueStatistics as QueueStatistics
    from meshq.client import Reattached as Reattached
    from meshq.client import ReceivedMessage as ReceivedMessage
    from meshq.client import Redirected as Redirected
    from meshq.client import ScaledDown as ScaledDown
    from meshq.client import SequenceHole as SequenceHole
    from meshq.client import SinkStatistics as SinkStatistics
    from meshq.client import StageStatistics as StageStatistics
    from meshq.client import TopologyChanged as TopologyChanged
    from meshq.client import TopologyNode as TopologyNode
    from meshq.client import Transaction as Transaction
    from meshq.client import connect as connect
    from meshq.cluster import ClusterConnection as ClusterConnection
    from meshq.cluster import Drain as Drain
    from meshq.cluster import DrainProgress as DrainProgress
    from meshq.cluster import PeerStatistics as PeerStatistics
    from meshq.cluster import RemoteQueue as RemoteQueue
    from meshq.config import dump_config as dump_config
    from meshq.config import load_broker as load_broker
    from meshq.directories import StoreDirectories as StoreDirectories
    from meshq.discovery import BroadcastGroup as BroadcastGroup
    from meshq.discovery import ConnectorPair as ConnectorPair
    from meshq.discovery import DiscoveredNode as DiscoveredNode
    from meshq.discovery import DiscoveryGroup as DiscoveryGroup
    from meshq.discovery import DiscoveryStatistics as DiscoveryStatistics
    from meshq.discovery import SharedDirectory as SharedDirectory
    from meshq.discovery import StaticUnicast as StaticUnicast
    from meshq.discovery import UDPMulticast as UDPMulticast
    from meshq.discovery import Zeroconf as Zeroconf
    from meshq.endpoint import Endpoint as Endpoint
    from meshq.errors import AddressFullError as AddressFullError
    from meshq.errors import BodyFormatError as BodyFormatError
    from meshq.errors import BrokenError as BrokenError
    from meshq.errors import BusyError as BusyError
    from meshq.errors import CallTimeoutError as CallTimeoutError
    from meshq.errors import ClosedError as ClosedError
    from meshq.errors import ConfigError as ConfigError
    from meshq.errors import ConnectionBrokenError as ConnectionBrokenError
    from meshq.errors import CursorHeldError as CursorHeldError
    from meshq.errors import CursorLostError as CursorLostError
    from meshq.errors import DamagedError as DamagedError
    from meshq.errors import DataLossError as DataLossError
    from meshq.errors import DuplicateError as DuplicateError
    from meshq.errors import FanoutError as FanoutError
    from meshq.errors import FilterError as FilterError
    from meshq.errors import InvariantError as InvariantError
    from meshq.errors import JournalBrokenError as JournalBrokenError
    from meshq.errors import LocalProtocolError as LocalProtocolError
    from meshq.errors import MeshqError as MeshqError
    from meshq.errors import NotActiveError as NotActiveError
    from meshq.errors import NotFoundError as NotFoundError
    from meshq.errors import ProtocolError as ProtocolError
    from meshq.errors import RefusedError as RefusedError
    from meshq.errors import RemoteProtocolError as RemoteProtocolError
    from meshq.errors import RetryTransactionError as RetryTransactionError
    from meshq.errors import SecurityError as SecurityError
    from meshq.errors import SettingsError as SettingsError
    from meshq.errors import StaleDeliveryError as StaleDeliveryError
    from meshq.errors import TransactionRolledBackError as TransactionRolledBackError
    from meshq.errors import UnblockedError as UnblockedError
    from meshq.errors import UsageError as UsageError
    from meshq.errors import UseAnotherServerError as UseAnotherServerError
    from meshq.ha import Colocated as Colocated
    from meshq.ha import LiveOnly as LiveOnly
    from meshq.ha import MajorityVote as MajorityVote
    from meshq.ha import MeshQuorum as MeshQuorum
    from meshq.ha import QuorumNode as QuorumNode
    from meshq.ha import QuorumNodeStatistics as QuorumNodeStatistics
    from meshq.ha import ReplicationBackup as ReplicationBackup
    from meshq.ha import ReplicationPrimary as ReplicationPrimary
    from meshq.ha import ScaleDown as ScaleDown
    from meshq.ha import SharedStoreBackup as SharedStoreBackup
    from meshq.ha import SharedStorePrimary as SharedStorePrimary
    from meshq.ha import Vote as Vote
    from meshq.ha import VoteSchedule as VoteSchedule
    from meshq.ha import ZooKeeperQuorum as ZooKeeperQuorum
    from meshq.ids import MessageId as MessageId
    from meshq.ids import NodeId as NodeId
    from meshq.lb import ConsistentHash as ConsistentHash
    from meshq.lb import FirstElement as FirstElement
    from meshq.lb import LeastConnections as LeastConnections
    from meshq.lb import Random as Random
    from meshq.lb import RandomSticky as RandomSticky
    from meshq.lb import RoundRobin as RoundRobin
    from meshq.lb.balancer import BrokerBalancer as BrokerBalancer
    from meshq.lb.balancer import ClusterPool as ClusterPool
    from meshq.lb.balancer import DiscoveryPool as DiscoveryPool
    from meshq.lb.balancer import StaticPool as StaticPool
    from meshq.message import Message as Message
    from meshq.message import MessageOrigin as MessageOrigin
    from meshq.network import NetworkConnector as NetworkConnector
    from meshq.network import NetworkSubscription as NetworkSubscription
    from meshq.network import Queues as Queues
    from meshq.network import Topics as Topics
    from meshq.node import Broker as Broker
    from meshq.node import BrokerBalancerInThread as BrokerBalancerInThread
    from meshq.node import BrokerInThread as BrokerInThread
    from meshq.node import ClusterConnectionInThread as ClusterConnectionInThread
    from meshq.node import HighAvailability as HighAvailability
    from meshq.node import HighAvailabilityInThread as HighAvailabilityInThread
    from meshq.node import HostedBackup as HostedBackup
    from meshq.node import NetworkConnectorInThread as NetworkConnectorInThread
    from meshq.node import ReplicaStore as ReplicaStore
    from meshq.node import ReplicaStoreInThread as ReplicaStoreInThread
    from meshq.node import ServiceInThread as ServiceInThread
    from meshq.notifications import AddressFull as AddressFull
    from meshq.notifications import BackupChanged as BackupChanged
    from meshq.notifications import BalancerQuorumLost as BalancerQuorumLost
    from meshq.notifications import BalancerQuorumReached as BalancerQuorumReached
    from meshq.notifications import BalancerTargetLost as BalancerTargetLost
    from meshq.notifications import BalancerTargetReady as BalancerTargetReady
    from meshq.notifications import BatchCommitted as BatchCommitted
    from meshq.notifications import BindingAdded as BindingAdded
    from meshq.notifications import BindingRemoved as BindingRemoved
    from meshq.notifications import BrokerStateChanged as BrokerStateChanged
    from meshq.notifications import ColocatedBackupStarted as ColocatedBackupStarted
    from meshq.notifications import ConsumerClosed as ConsumerClosed
    from meshq.notifications import ConsumerCreated as ConsumerCreated
    from meshq.notifications import CursorLagging as CursorLagging
    from meshq.notifications import CursorReleased as CursorReleased
    from meshq.notifications import InSyncChanged as InSyncChanged
    from meshq.notifications import LoginRefused as LoginRefused
    from meshq.notifications import MemoryFull as MemoryFull
    from meshq.notifications import MessageDeadLettered as MessageDeadLettered
    from meshq.notifications import MessageExpired as MessageExpired
    from meshq.notifications import MessagesRedistributed as MessagesRedistributed
    from meshq.notifications import MessagesStuck as MessagesStuck
    from meshq.notifications import NodeJoined as NodeJoined
    from meshq.notifications import NodeLeft as NodeLeft
    from meshq.notifications import Notification as Notification
    from meshq.notifications import QueueCreated as QueueCreated
    from meshq.notifications import QueueDeleted as QueueDeleted
    from meshq.notifications import ReplicaDropped as ReplicaDropped
    from meshq.notifications import RoleChanged as RoleChanged
    from meshq.notifications import SecurityRefused as SecurityRefused
    from meshq.notifications import SessionClosed as SessionClosed
    from meshq.notifications import SessionCreated as SessionCreated
    from meshq.notifications import StageExpired as StageExpired
    from meshq.notifications import StoreDamaged as StoreDamaged
    from meshq.notifications import SyncBegun as SyncBegun
    from meshq.notifications import SyncDone as SyncDone
    from meshq.notifications import SyncFailed as SyncFailed
    from meshq.notifications import SyncProgress as SyncProgress
    from meshq.notifications import TransactionDecided as TransactionDecided
    from meshq.notifications import TransactionPrepared as TransactionPrepared
    from meshq.notifications import VoteHeld as VoteHeld
    from meshq.permissions import PermissionExplanation as PermissionExplanation
    from meshq.permissions import Permissions as Permissions
    from meshq.settings import TLS as TLS
    from meshq.settings import Acceptor as Acceptor
    from meshq.settings import AddressSettings as AddressSettings
    from meshq.settings import EncryptionKey as EncryptionKey
    from meshq.settings import JournalSettings as JournalSettings
    from meshq.settings import Secret as Secret
    from meshq.settings import Security as Security
    from meshq.statistics import BalancerRoute as BalancerRoute
    from meshq.statistics import BalancerStatistics as BalancerStatistics
    from meshq.statistics import BalancerTargetStatistics as BalancerTargetStatistics
    from meshq.statistics import BrokerStatistics as BrokerStatistics
    from meshq.statistics import EndedBackup as EndedBackup
    from meshq.statistics import JournalStatistics as JournalStatistics
    from meshq.statistics import RoleStatus as RoleStatus
    from meshq.statistics import StuckMessages as StuckMessages
    from meshq.store import Journal as Journal
    from meshq.store import JournalRecord as JournalRecord

_ERRORS: Final = (
    "AddressFullError",
    "BodyFormatError",
    "BrokenError",
    "BusyError",
    "CallTimeoutError",
    "ClosedError",
    "ConfigError",
    "ConnectionBrokenError",
    "DamagedError",
    "DataLossError",
    "DuplicateError",
    "FanoutError",
    "FilterError",
    "InvariantError",
    "JournalBrokenError",
    "LocalProtocolError",
    "MeshqError",
    "NotActiveError",
    "CursorHeldError",
    "CursorLostError",
    "NotFoundError",
    "ProtocolError",
    "RefusedError",
    "RemoteProtocolError",
    "RetryTransactionError",
    "SecurityError",
    "SettingsError",
    "StaleDeliveryError",
    "TransactionRolledBackError",
    "UnblockedError",
    "UsageError",
    "UseAnotherServerError",
)

_NOTIFICATIONS: Final = (
    "AddressFull",
    "BatchCommitted",
    "BrokerStateChanged",
    "ConsumerClosed",
    "CursorLagging",
    "CursorReleased",
    "ConsumerCreated",
    "LoginRefused",
    "MemoryFull",
    "MessageDeadLettered",
    "MessageExpired",
    "MessagesRedistributed",
    "MessagesStuck",
    "Notification",
    "QueueCreated",
    "QueueDeleted",
    "SecurityRefused",
    "SessionClosed",
    "SessionCreated",
    "StageExpired",
    "StoreDamaged",
    "BackupChanged",
    "BalancerQuorumLost",
    "BalancerQuorumReached",
    "BalancerTargetLost",
    "ColocatedBackupStarted",
    "BalancerTargetReady",
    "NodeJoined",
    "BindingAdded",
    "BindingRemoved",
    "NodeLeft",
    "RoleChanged",
    "InSyncChanged",
    "SyncBegun",
    "SyncDone",
    "SyncFailed",
    "SyncProgress",
    "ReplicaDropped",
    "TransactionDecided",
    "TransactionPrepared",
    "VoteHeld",
)

#: Where each public name lives.
_HOME: Final = {
    "Acceptor": "meshq.settings",
    "AddressSettings": "meshq.settings",
    "BalancerPolicy": "meshq.abc",
    "BalancerTarget": "meshq.abc",
    "BatchCommit": "meshq.client",
    "BodyStream": "meshq.client",
    "Bridge": "meshq.bridge",
    "BridgeStatistics": "meshq.bridge",
    "BroadcastGroup": "meshq.discovery",
    "Broker": "meshq.node",
    "BrokerInThread": "meshq.node",
    "BrokerStatistics": "meshq.statistics",
    "Client": "meshq.client",
    "ClientFactory": "meshq.client",
    "ClientSettings": "meshq.client",
    "ClientStatistics": "meshq.client",
    "ClusterConnection": "meshq.cluster",
    "ClusterConnectionInThread": "meshq.node",
    "ClusterQueue": "meshq.client",
    "ClusteredConsumer": "meshq.client",
    "Connected": "meshq.client",
    "ConnectionEvent": "meshq.client",
    "ConnectorPair": "meshq.discovery",
    "Consumer": "meshq.client",
    "ConsumerStatistics": "meshq.client",
    "Cursor": "meshq.client",
    "CursorLag": "meshq.client",
    "CursorStatistics": "meshq.client",
    "Delivery": "meshq.client",
    "Disconnected": "meshq.client",
    "DiscoveredNode": "meshq.discovery",
    "DiscoveryGroup": "meshq.discovery",
    "DiscoveryStatistics": "meshq.discovery",
    "Divert": "meshq.client",
    "EncryptionKey": "meshq.settings",
    "Endpoint": "meshq.endpoint",
    "EventStream": "meshq.client",
    "FailedOver": "meshq.client",
    "FanoutClient": "meshq.client",
    "FanoutMissed": "meshq.client",
    "FirstElement": "meshq.lb",
    "InFlightMessages": "meshq.client",
    "Journal": "meshq.store",
    "JournalRecord": "meshq.store",
    "JournalSettings": "meshq.settings",
    "JournalStatistics": "meshq.statistics",
    "Message": "meshq.message",
    "MessageId": "meshq.ids",
    "MessageHop": "meshq.client",
    "MessageLocation": "meshq.client",
    "MessageOrigin": "meshq.message",
    "MessageRoute": "meshq.client",
    "MessageRouteStep": "meshq.client",
    "MessageTrace": "meshq.client",
    "NetworkConnector": "meshq.network",
    "NetworkSubscription": "meshq.network",
    "NodeId": "meshq.ids",
    "NodeRoute": "meshq.client",
    "PeerStatistics": "meshq.cluster",
    "Drain": "meshq.cluster",
    "Colocated": "meshq.ha",
    "LiveOnly": "meshq.ha",
    "Vote": "meshq.ha",
    "VoteSchedule": "meshq.ha",
    "MajorityVote": "meshq.ha",
    "MeshQuorum": "meshq.ha",
    "QuorumNode": "meshq.ha",
    "QuorumNodeStatistics": "meshq.ha",
    "ZooKeeperQuorum": "meshq.ha",
    "QueueOnNode": "meshq.client",
    "Queues": "meshq.network",
    "ScaleDown": "meshq.ha",
    "HighAvailability": "meshq.node",
    "HighAvailabilityInThread": "meshq.node",
    "HostedBackup": "meshq.node",
    "EndedBackup": "meshq.statistics",
    "ReplicaStore": "meshq.node",
    "ReplicaStoreInThread": "meshq.node",
    "Difference": "meshq.abc",
    "RoleMember": "meshq.abc",
    "RoleStatus": "meshq.statistics",
    "SharedStoreBackup": "meshq.ha",
    "ReplicationBackup": "meshq.ha",
    "ReplicationPrimary": "meshq.ha",
    "SharedStorePrimary": "meshq.ha",
    "DrainProgress": "meshq.cluster",
    "PermissionExplanation": "meshq.permissions",
    "Permissions": "meshq.permissions",
    "PreparedTransaction": "meshq.client",
    "Producer": "meshq.client",
    "ProducerStatistics": "meshq.client",
    "QueueStatistics": "meshq.client",
    "Random": "meshq.lb",
    "RandomSticky": "meshq.lb",
    "Reattached": "meshq.client",
    "ReceivedMessage": "meshq.client",
    "RemoteQueue": "meshq.cluster",
    "RoundRobin": "meshq.lb",
    "ClientBalancer": "meshq.client",
    "BrokerBalancerInThread": "meshq.node",
    "NetworkConnectorInThread": "meshq.node",
    "Redirected": "meshq.client",
    "BalancerRoute": "meshq.statistics",
    "BalancerStatistics": "meshq.statistics",
    "BalancerTargetStatistics": "meshq.statistics",
    "BrokerBalancer": "meshq.lb.balancer",
    "ClusterPool": "meshq.lb.balancer",
    "DiscoveryPool": "meshq.lb.balancer",
    "StaticPool": "meshq.lb.balancer",
    "ConsistentHash": "meshq.lb",
    "LeastConnections": "meshq.lb",
    "ScaledDown": "meshq.client",
    "Secret": "meshq.settings",
    "Security": "meshq.settings",
    "ServiceInThread": "meshq.node",
    "SharedDirectory": "meshq.discovery",
    "SinkStatistics": "meshq.client",
    "StageStatistics": "meshq.client",
    "StaticUnicast": "meshq.discovery",
    "StoreDirectories": "meshq.directories",
    "StuckMessages": "meshq.statistics",
    "TLS": "meshq.settings",
    "SequenceHole": "meshq.client",
    "Topics": "meshq.network",
    "TopologyChanged": "meshq.client",
    "TopologyNode": "meshq.client",
    "Transaction": "meshq.client",
    "UDPMulticast": "meshq.discovery",
    "Zeroconf": "meshq.discovery",
    "connect": "meshq.client",
    "dump_config": "meshq.config",
    "load_broker": "meshq.config",
    **dict.fromkeys(_ERRORS, "meshq.errors"),
    **dict.fromkeys(_NOTIFICATIONS, "meshq.notifications"),
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'meshq' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
