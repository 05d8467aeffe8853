"""Every interface between meshq and the outside world, each a contract.

Nothing in meshq opens a file or a socket, reads a wall clock, draws a random number or starts a thread but
through these.  Monotonic time is trio's own (``trio.current_time``).  ``meshq.env`` has the real
implementations; the testing kit has simulated ones that pass the same conformance suites.

Beside them stand the interfaces between a broker and what it is given: services, the policy that says when the broker
is active, and the rule that says which connections it takes; and a client and the nodes that it may connect to.
"""

from meshq.abc._admission import Accept, Admission, AdmissionDecision, HandshakeFacts, Redirect, Refuse
from meshq.abc._balancing import BalancerPolicy, BalancerTarget
from meshq.abc._broadcast import BroadcastChannel, BroadcastEndpoint, BroadcastSender
from meshq.abc._buffer import Buffer
from meshq.abc._datagrams import Datagrams, DatagramSocket
from meshq.abc._disk import Disk, File
from meshq.abc._env import Entropy, Env, WallClock, no_failpoint
from meshq.abc._groups import PinnedGroups
from meshq.abc._ha import (
    Activation,
    ActiveTerm,
    HAPolicy,
    QuorumProvider,
    QuorumRecord,
    QuorumSession,
    StepBack,
    TermGuard,
)
from meshq.abc._held import HeldMessages, HeldQueues, RemoteDemand
from meshq.abc._links import (
    AddressCredits,
    BodyReader,
    ForwardEntry,
    ForwardRun,
    ForwardWay,
    KnownPeer,
    LargeForwardRun,
    PeerQueues,
    RemoteBindings,
    RemoteQueue,
    StoreAndForwardQueue,
    StrandedMessages,
    StrandedQueue,
)
from meshq.abc._local import FrameLink, FrameReceiver, LocalAcceptor
from meshq.abc._network import Listener, Network, Stream, Tls, TlsSide
from meshq.abc._programs import NoPrograms, Programs
from meshq.abc._questions import QUESTION_HOPS_MAX, ClusterMember, NodeQuestions, OwnAnswers
from meshq.abc._redirection import Redirector, Redirectors
from meshq.abc._replicas import ReplicaEnd, ReplicaHost, ReplicaLine
from meshq.abc._replication import (
    RecordDigest,
    RecordSource,
    ReplicatedBatch,
    ReplicationSink,
    ReplicationStart,
    StoredBatch,
    StoredSegment,
)
from meshq.abc._roles import Difference, Replica, RoleBoard, RoleMember, RoleReport, StoreComparer
from meshq.abc._services import Controllable, Demand, LocalBroker, NodeControl, NotificationSink, Service
from meshq.abc._targets import TargetPolicy, TopologySource
from meshq.abc._threads import Threads
from meshq.abc._topology import HandoverTarget, NodeDescription, ToldNode, Topologies, TopologyMember
from meshq.abc._transfer import Transfer, TransferInventory

__all__ = [
    "QUESTION_HOPS_MAX",
    "Accept",
    "Activation",
    "ActiveTerm",
    "AddressCredits",
    "Admission",
    "AdmissionDecision",
    "BalancerPolicy",
    "BalancerTarget",
    "BodyReader",
    "BroadcastChannel",
    "BroadcastEndpoint",
    "BroadcastSender",
    "Buffer",
    "ClusterMember",
    "Controllable",
    "DatagramSocket",
    "Datagrams",
    "Demand",
    "Difference",
    "Disk",
    "Entropy",
    "Env",
    "File",
    "ForwardEntry",
    "ForwardRun",
    "ForwardWay",
    "FrameLink",
    "FrameReceiver",
    "HAPolicy",
    "HandoverTarget",
    "HandshakeFacts",
    "HeldMessages",
    "HeldQueues",
    "KnownPeer",
    "LargeForwardRun",
    "Listener",
    "LocalAcceptor",
    "LocalBroker",
    "Network",
    "NoPrograms",
    "NodeControl",
    "NodeDescription",
    "NodeQuestions",
    "NotificationSink",
    "OwnAnswers",
    "PeerQueues",
    "PinnedGroups",
    "Programs",
    "QuorumProvider",
    "QuorumRecord",
    "QuorumSession",
    "RecordDigest",
    "RecordSource",
    "Redirect",
    "Redirector",
    "Redirectors",
    "Refuse",
    "RemoteBindings",
    "RemoteDemand",
    "RemoteQueue",
    "Replica",
    "ReplicaEnd",
    "ReplicaHost",
    "ReplicaLine",
    "ReplicatedBatch",
    "ReplicationSink",
    "ReplicationStart",
    "RoleBoard",
    "RoleMember",
    "RoleReport",
    "Service",
    "StepBack",
    "StoreAndForwardQueue",
    "StoreComparer",
    "StoredBatch",
    "StoredSegment",
    "StrandedMessages",
    "StrandedQueue",
    "Stream",
    "TargetPolicy",
    "TermGuard",
    "Threads",
    "Tls",
    "TlsSide",
    "ToldNode",
    "Topologies",
    "TopologyMember",
    "TopologySource",
    "Transfer",
    "TransferInventory",
    "WallClock",
    "no_failpoint",
]
