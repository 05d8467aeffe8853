"""A trio loop in a thread of its own, and calls into it: the common part of the faces for threads and for asyncio."""

from meshq.portal._block_runner import BlockRunner
from meshq.portal._buffered_consumer import BufferedConsumer
from meshq.portal._buffered_producer import BufferedProducer, OpenProducers, in_full
from meshq.portal._completion import PortalCompletion, ThreadCompletion
from meshq.portal._event_buffer import EventBuffer
from meshq.portal._loop_thread import LoopThread
from meshq.portal._own_outcome import own_outcome, own_outcome_sync
from meshq.portal._pipe import PipeStream
from meshq.portal._workers import Workers

__all__ = [
    "BlockRunner",
    "BufferedConsumer",
    "BufferedProducer",
    "EventBuffer",
    "LoopThread",
    "OpenProducers",
    "PipeStream",
    "PortalCompletion",
    "ThreadCompletion",
    "Workers",
    "in_full",
    "own_outcome",
    "own_outcome_sync",
]
