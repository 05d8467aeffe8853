"""Clocks and entropy, and all of the outside world in one record."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING

import attrs

from meshq import limits
from meshq.abc._datagrams import Datagrams
from meshq.abc._disk import Disk
from meshq.abc._local import LocalAcceptor
from meshq.abc._network import Network, Tls
from meshq.abc._programs import NoPrograms, Programs
from meshq.abc._threads import Threads

if TYPE_CHECKING:
    from trio.abc import Clock


class WallClock(ABC):
    """The time of day, for timestamps and expiry only, never for intervals."""

    @abstractmethod
    def now_ms(self) -> int:
        """Return the milliseconds since 1970, UTC."""


class Entropy(ABC):
    """Randomness."""

    @abstractmethod
    def token(self, size: int) -> bytes:
        """Return ``size`` random bytes for secrets."""

    @abstractmethod
    def generator(self) -> random.Random:
        """Return a new generator for jitter and choices that need not be secret."""


def no_failpoint(name: str) -> bool:
    """Say False at every point: the default outside the simulation."""
    return False


@attrs.frozen(kw_only=True)
class Env:
    """The environment of one node or client: disk, threads, network, datagrams, TLS, clocks, randomness."""

    disk: Disk
    threads: Threads
    network: Network
    datagrams: Datagrams
    tls: Tls
    wall: WallClock
    entropy: Entropy
    #: Bytes of memory that this host has.
    memory_bytes: int
    #: Files and connections that this process may have open.
    descriptors: int = limits.DESCRIPTORS_UNKNOWN
    #: The clock of loops that meshq starts in threads of their own; None: trio's own clock.
    clock: Clock | None = None
    #: The name of this host and the number of this process, for operators of other hosts.
    host: str = ""
    pid: int = 0
    programs: Programs = attrs.field(factory=NoPrograms)
    #: Asked at named points; True takes the rare way there.  Constant False outside the simulation.
    failpoint: Callable[[str], bool] = no_failpoint
    #: In-process endpoints by name: ``inproc://name`` finds its broker here.  Whoever shares the dictionary
    #: shares the process.
    local: MutableMapping[str, LocalAcceptor] = attrs.field(factory=dict, repr=False)
