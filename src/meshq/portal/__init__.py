"""A trio loop in a thread of its own, and the way into it: what the faces for threads and for asyncio share."""

from meshq.portal._borrowing import Borrowing
from meshq.portal._gathering import Gathering
from meshq.portal._host import Host
from meshq.portal._loop import Loop
from meshq.portal._pipe import PipeStream
from meshq.portal._promise import Promise, ThreadPromise

__all__ = ["Borrowing", "Gathering", "Host", "Loop", "PipeStream", "Promise", "ThreadPromise"]
