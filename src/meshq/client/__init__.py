"""The client: connections that come back, sessions, producers, consumers."""

from meshq.client._agent_urls import Agent, agent_of
from meshq.client._bridge_calls import (
    acknowledge,
    forget_window,
    keep_to_node,
    on_failed_attempts,
    put_back,
    send_bridged,
    stream_bridged,
    watch,
    window_at,
)
from meshq.client._client import Client
from meshq.client._connector_calls import (
    KindBits,
    RowColumns,
    holes_between,
    range_reader,
    send_bodies,
    send_columns,
)
from meshq.client._face_factory import FaceFactory
from meshq.client._factory import ClientFactory, connect, factory_of
from meshq.client._fanout_client import FanoutClient
from meshq.client._network_calls import (
    DemandSnapshot,
    NetworkQueue,
    demand_of,
    kept_queues,
    network_consumer,
    path_beyond,
    reroute,
    topic_id,
)
from meshq.client._run_calls import (
    RunsOnTheWay,
    Settlement,
    deliveries_of,
    known_window,
    onward_runs,
    receive_spans,
    settle_spans,
)
from meshq.client.admin._client_balancer import ClientBalancer
from meshq.client.admin._cluster_queues import (
    ClusteredConsumer,
    ClusterQueue,
    InFlightMessages,
    QueueOnNode,
    cluster_queue,
)
from meshq.client.admin._message_routes import (
    MessageHop,
    MessageLocation,
    MessageRoute,
    MessageRouteStep,
    MessageTrace,
    NodeRoute,
)
from meshq.client.admin._statistics import ClientStatistics, Divert, PreparedTransaction, QueueStatistics
from meshq.client.incoming._delivered_run import DeliveredRun, ReceivedMessage
from meshq.client.incoming._spans import DeliverySpan
from meshq.client.link._announcement_plan import AnnouncementPlan
from meshq.client.link._events import (
    EVENTS_MAX,
    Connected,
    ConnectionEvent,
    Disconnected,
    EventSink,
    EventStream,
    FailedOver,
    FanoutMissed,
    Reattached,
    Redirected,
)
from meshq.client.link._log_link import LogLink, LogPiece
from meshq.client.link._peer_link import PeerLink
from meshq.client.link._probe import BrokerProbe, ProbedBroker, same_node
from meshq.client.link._topology import ScaledDown, TopologyChanged, TopologyNode, topology_of
from meshq.client.outgoing._outbox import OutgoingRun
from meshq.client.receive._body_stream import BodyStream
from meshq.client.receive._consumer import AckMode, Consumer, ConsumerStatistics
from meshq.client.receive._consumer_tap import ConsumerTap
from meshq.client.receive._cursor import Cursor
from meshq.client.receive._cursor_records import CursorLag, CursorStart, CursorStatistics, SequenceHole
from meshq.client.receive._delivery import Delivery
from meshq.client.receive._handlers import HandlerErrors, check_serving, place_of
from meshq.client.send._body_sources import BodySource
from meshq.client.send._producer import Producer, ProducerStatistics
from meshq.client.send._producer_feed import ProducerFeed
from meshq.client.send._send_batches import BridgedMessage
from meshq.client.session._cluster_link_channel import ForwardedRun, PeerEvents
from meshq.client.settings._settings import ClientOptions, ClientSettings
from meshq.client.settings._url_format import shown as shown_url
from meshq.client.transactions._stage import Stage
from meshq.client.transactions._stage_calls import BatchCommit, SinkStatistics, StageStatistics
from meshq.client.transactions._transaction import Transaction
from meshq.client.transactions._transaction_calls import settle_by_consumer

__all__ = [
    "EVENTS_MAX",
    "AckMode",
    "Agent",
    "AnnouncementPlan",
    "BatchCommit",
    "BodySource",
    "BodyStream",
    "BridgedMessage",
    "BrokerProbe",
    "Client",
    "ClientBalancer",
    "ClientFactory",
    "ClientOptions",
    "ClientSettings",
    "ClientStatistics",
    "ClusterQueue",
    "ClusteredConsumer",
    "Connected",
    "ConnectionEvent",
    "Consumer",
    "ConsumerStatistics",
    "ConsumerTap",
    "Cursor",
    "CursorLag",
    "CursorStart",
    "CursorStatistics",
    "DeliveredRun",
    "Delivery",
    "DeliverySpan",
    "DemandSnapshot",
    "Disconnected",
    "Divert",
    "EventSink",
    "EventStream",
    "FaceFactory",
    "FailedOver",
    "FanoutClient",
    "FanoutMissed",
    "ForwardedRun",
    "HandlerErrors",
    "InFlightMessages",
    "KindBits",
    "LogLink",
    "LogPiece",
    "MessageHop",
    "MessageLocation",
    "MessageRoute",
    "MessageRouteStep",
    "MessageTrace",
    "NetworkQueue",
    "NodeRoute",
    "OutgoingRun",
    "PeerEvents",
    "PeerLink",
    "PreparedTransaction",
    "ProbedBroker",
    "Producer",
    "ProducerFeed",
    "ProducerStatistics",
    "QueueOnNode",
    "QueueStatistics",
    "Reattached",
    "ReceivedMessage",
    "Redirected",
    "RowColumns",
    "RunsOnTheWay",
    "ScaledDown",
    "SequenceHole",
    "Settlement",
    "SinkStatistics",
    "Stage",
    "StageStatistics",
    "TopologyChanged",
    "TopologyNode",
    "Transaction",
    "acknowledge",
    "agent_of",
    "check_serving",
    "cluster_queue",
    "connect",
    "deliveries_of",
    "demand_of",
    "factory_of",
    "forget_window",
    "holes_between",
    "keep_to_node",
    "kept_queues",
    "known_window",
    "network_consumer",
    "on_failed_attempts",
    "onward_runs",
    "path_beyond",
    "place_of",
    "put_back",
    "range_reader",
    "receive_spans",
    "reroute",
    "same_node",
    "send_bodies",
    "send_bridged",
    "send_columns",
    "settle_by_consumer",
    "settle_spans",
    "shown_url",
    "stream_bridged",
    "topic_id",
    "topology_of",
    "watch",
    "window_at",
]
