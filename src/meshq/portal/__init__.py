"""A trio loop in a thread of its own, and the way into it: what the faces for threads and for asyncio share."""

from meshq.portal._block_runner import Host
from meshq.portal._buffered_consumer import Borrowing
from meshq.portal._buffered_producer import Gathering
from meshq.portal._completion import Promise, ThreadPromise
from meshq.portal._loop_thread import Loop
from meshq.portal._pipe import PipeStream

__all__ = ["Borrowing", "Gathering", "Host", "Loop", "PipeStream", "Promise", "ThreadPromise"]
