"""Sleeping to the microsecond.

trio sleeps in epoll, which counts in milliseconds and rounds up: a sender that is paced by it is late by up to one,
and its lateness would stand in the latencies of whatever it sends to.
"""

from __future__ import annotations

import ctypes
import os

import trio

CLOCK_MONOTONIC = 1  # <linux/time.h>: the clock of time.monotonic()


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Timer:
    """A timer of the kernel's own, which trio can wait for; it lives as long as its process."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    async def sleep(self, seconds: float) -> None:
        """Return when so much time has gone by; at once if that is nothing."""
        if seconds <= 0.0:
            await trio.lowlevel.checkpoint()
            return
        whole = int(seconds)
        setting = _Setting(value=_Timespec(whole, max(1, int((seconds - whole) * 1e9))))
        if self._libc.timerfd_settime(self._descriptor, 0, ctypes.byref(setting), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        await trio.lowlevel.wait_readable(self._descriptor)
        os.read(self._descriptor, 8)
