"""A trio loop in a thread of its own, and calls into it: the common part of the faces for threads and for asyncio."""

from meshq.portal._block_runner import BlockRunner
from meshq.portal._buffered_consumer import BufferedConsumer
from meshq.portal._buffered_producer import BufferedProducer
from meshq.portal._completion import PortalCompletion, ThreadCompletion
from meshq.portal._loop_thread import LoopThread
from meshq.portal._pipe import PipeStream

__all__ = [
    "BlockRunner",
    "BufferedConsumer",
    "BufferedProducer",
    "LoopThread",
    "PipeStream",
    "PortalCompletion",
    "ThreadCompletion",
]
