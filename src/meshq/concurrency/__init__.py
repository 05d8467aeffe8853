"""Waits and blocks of tasks in one trio loop: the common room of client, store and node."""

from meshq.concurrency._background_block import BackgroundBlock
from meshq.concurrency._block import Block
from meshq.concurrency._block_life import new_block_life
from meshq.concurrency._change_signal import ChangeSignal
from meshq.concurrency._completion import Completion
from meshq.concurrency._errors import copied_error, first_error
from meshq.concurrency._wakeup import Wakeup

__all__ = [
    "BackgroundBlock",
    "Block",
    "ChangeSignal",
    "Completion",
    "Wakeup",
    "copied_error",
    "first_error",
    "new_block_life",
]
