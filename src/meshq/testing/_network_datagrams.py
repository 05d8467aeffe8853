"""Datagrams in the memory network: the links between hosts, with their latencies and cuts, carry them.

A datagram that meets a cut is lost, unlike a segment of a connection, which waits.  Each datagram has a latency of its
own, so that one overtakes another; some are lost and some come twice, as ``NetworkSettings`` says.  What arrives at a
host without power, or without a process, is lost; a process that is paused finds it when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from meshq.testing._network_host import HostContext


class NetworkPaths:
    """The ways of datagrams over the links of a memory network."""

    def __init__(self, fabric: HostContext) -> None:
        self._fabric = fabric
        #: The datagrams that were lost, and the datagrams that came twice.
        self.lost: int = 0
        self.doubled: int = 0

    async def may_run(self, host: str) -> None:
        """Wait while the process on a host is paused, and for ever once it is dead.

        Checkpoint: always.  Cancellation: nothing has changed.
        """
        found = self._fabric.find(host)
        if found is None:
            await trio.lowlevel.checkpoint()
        else:
            await found.network.may_run()

    def carry(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        """Send a datagram on its way."""
        fabric, link, now = self._fabric, self._fabric.link(source, target), trio.current_time()
        dropped = link.loss > 0 and fabric.rng.random() < link.loss
        if link.cut or dropped or fabric.rng.random() < fabric.settings.datagram_lost_chance:
            self.lost += 1
            return
        departure = now if link.bytes_per_s is None else max(now, link.free_at)
        doubled = fabric.rng.random() < fabric.settings.datagram_doubled_chance
        self.doubled += doubled
        for _ in range(1 + doubled):
            fabric.at(departure + link.latency(), partial(self._arrive, source, target, arrive))

    def _arrive(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        host = self._fabric.find(target)
        if self._fabric.link(source, target).cut or (host is not None and host.network.dead):
            self.lost += 1
        elif host is None:
            arrive()
        else:
            host.when_running(arrive)
