"""A term over a shared store: the lock, the epoch and the lease, from the activation to the release."""

from __future__ import annotations

import math

import trio

from meshq.abc import Disk, File, StepBack, TermGuard
from meshq.ha._fenced_disk import Fence, FencedDisk
from meshq.ha._lease_machine import Lease
from meshq.ha._shared_directory import Epoch


class StoreTerm(TermGuard):
    """A term that lasts while its lease holds and its epoch is the newest."""

    def __init__(self, lock: File, epoch: Epoch, lease: Lease, disk: Disk, node_id: str = "") -> None:
        #: The open file with the lock of the store.
        self.lock: File = lock
        #: The epoch of the term.
        self.epoch: Epoch = epoch
        #: The id of the node, as hexadecimal digits; empty: its store has none yet.
        self.node_id: str = node_id
        #: Whether clients are served, and when the lease is renewed next.
        self.serving: bool = False
        self.renewal_due: float = -math.inf
        #: Until when the node may act.
        self.lease: Lease = lease
        #: By which the node notices a successor.
        self.fence: Fence = Fence(disk, epoch.fence)
        #: The order to end the term; None: there is none.
        self.order: StepBack | None = None
        #: The order of which the broker was told.
        self.told: StepBack | None = None
        #: Whether no node was found that takes over what the store holds.
        self.stranded: bool = False
        #: Whether another node has got all that the store held.
        self.emptied: bool = False
        #: Whether the order, or the stop, hands the store over to another node.
        self.hands_over: bool = False

    def may_act(self) -> bool:
        """Whether the lease holds, and no other epoch is known to have begun."""
        return self.lease.holds(trio.current_time()) and not self.fence.fallen

    def disk(self, disk: Disk) -> Disk:
        """Return the disk that fails when another epoch has begun."""
        return FencedDisk(disk, self.fence)

    @property
    def over(self) -> StepBack | None:
        """The order for a node whose store fails because the term is over."""
        if self.fence.fallen:
            return StepBack(reason="superseded", at_once=True)
        if not self.lease.holds(trio.current_time()):
            return StepBack(reason="lease_lost", at_once=True)
        return None
