"""The core of a node: queues, routing, sessions.  What it is put together with stands in ``meshq.node``."""

from meshq.broker.access._credentials import Credentials
from meshq.broker.bodies._file_bodies import FileBodies
from meshq.broker.bodies._whole import read_whole
from meshq.broker.catalog._binding_news import BindingNews
from meshq.broker.catalog._demand_updates import is_hidden
from meshq.broker.catalog._distribution_plan import RemoteBinding
from meshq.broker.connection._connection_bounds_plan import ConnectionBounds, SessionBounds, connection_bounds
from meshq.broker.connection._link_server import LinkServer
from meshq.broker.connection._listener import Listeners
from meshq.broker.connection._server_connection_machine import ConnectionCounts, ServerConnection
from meshq.broker.connection._stream_connection import StreamConnection
from meshq.broker.core._core import Core, CoreSettings
from meshq.broker.core._host_node import BackupTold, EndTold
from meshq.broker.events._event_bus import EventBus
from meshq.broker.ingress._redistribution import filters_here, needed_features
from meshq.broker.log._hop_log import Hop
from meshq.broker.management._clustered_groups import ClusteredGroups
from meshq.broker.management._held_messages import held_messages, waiting_queues
from meshq.broker.management._id_transfer import hand_over_ids, take_back
from meshq.broker.management._inventory import inventory
from meshq.broker.management._management import answer_call, flat
from meshq.broker.management._network_demand import kept_messages
from meshq.broker.management._prepared_transfer import begun_ways, hand_over_prepared, prepared_xids, takes_prepared
from meshq.broker.management._queue_transfer import lacking_queues, make_queues, makes_queues
from meshq.broker.management._redistributing import give_back, redistribute, transfer
from meshq.broker.paging._reading import run_contents
from meshq.broker.queue._consumer_state import AnyConsumer, Dispatch
from meshq.broker.queue._delivery_options import FormerCount, picked
from meshq.broker.queue._queue_machine import Queue, QueueConsumer
from meshq.broker.queue._run import QueueRun, StoredRun
from meshq.broker.records import PREFIX_FORM, record_prefix
from meshq.broker.session._deliver_frames import dispatched_run
from meshq.broker.session._session_registry import SessionRegistry
from meshq.broker.work._long_operations import LongOperation, at_once

__all__ = [
    "PREFIX_FORM",
    "AnyConsumer",
    "BackupTold",
    "BindingNews",
    "ClusteredGroups",
    "ConnectionBounds",
    "ConnectionCounts",
    "Core",
    "CoreSettings",
    "Credentials",
    "Dispatch",
    "EndTold",
    "EventBus",
    "FileBodies",
    "FormerCount",
    "Hop",
    "LinkServer",
    "Listeners",
    "LongOperation",
    "Queue",
    "QueueConsumer",
    "QueueRun",
    "RemoteBinding",
    "ServerConnection",
    "SessionBounds",
    "SessionRegistry",
    "StoredRun",
    "StreamConnection",
    "answer_call",
    "at_once",
    "begun_ways",
    "connection_bounds",
    "dispatched_run",
    "filters_here",
    "flat",
    "give_back",
    "hand_over_ids",
    "hand_over_prepared",
    "held_messages",
    "inventory",
    "is_hidden",
    "kept_messages",
    "lacking_queues",
    "make_queues",
    "makes_queues",
    "needed_features",
    "picked",
    "prepared_xids",
    "read_whole",
    "record_prefix",
    "redistribute",
    "run_contents",
    "take_back",
    "takes_prepared",
    "transfer",
    "waiting_queues",
]
