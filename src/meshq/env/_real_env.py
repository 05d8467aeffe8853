"""The environment of production, put together."""

from __future__ import annotations

import os
import socket
from contextvars import ContextVar
from typing import Any, Final

from meshq.abc import Env
from meshq.env._clock import SystemClock
from meshq.env._datagrams import UdpDatagrams
from meshq.env._disk import RealDisk
from meshq.env._entropy import SystemEntropy
from meshq.env._host_limits import descriptors, memory_bytes
from meshq.env._network import TcpNetwork
from meshq.env._programs import SystemPrograms
from meshq.env._threads import WorkerThreads
from meshq.env._tls import OpenSslTls

#: The brokers of this process by the name of their ``inproc://`` endpoint.  The one mutable object at module
#: level: it *is* the process, so that a client finds a broker that another part of the program has started.
_LOCAL: Final[dict[str, Any]] = {}

#: The environment of this task, and of the tasks that it starts, unless an ``env=`` is given; None: the real one.
DEFAULT_ENV: Final[ContextVar[Env | None]] = ContextVar("meshq_default_env", default=None)

if hasattr(os, "register_at_fork"):
    # The brokers stay with the parent; a child that found them here would wait for tasks it does not run.
    os.register_at_fork(after_in_child=_LOCAL.clear)


def real_env() -> Env:
    """This host's disk, network, clock, entropy and threads; ``inproc://`` names are shared per process."""
    return Env(
        disk=RealDisk(),
        threads=WorkerThreads(),
        network=TcpNetwork(),
        datagrams=UdpDatagrams(),
        tls=OpenSslTls(),
        wall=SystemClock(),
        entropy=SystemEntropy(),
        memory_bytes=memory_bytes(),
        descriptors=descriptors(),
        host=socket.gethostname(),
        pid=os.getpid(),
        programs=SystemPrograms(),
        local=_LOCAL,
    )


def default_env() -> Env:
    """The environment of a broker, client or journal that was given none: the real one, except in a simulated test."""
    return DEFAULT_ENV.get() or real_env()
