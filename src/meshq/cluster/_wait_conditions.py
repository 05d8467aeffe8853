"""The conditions that a program may wait for at a cluster connection."""

from __future__ import annotations

from typing import Any, NamedTuple

from meshq.address import parse_place
from meshq.errors import SettingsError
from meshq.settings import check_bool, check_seconds


class FoundInCluster(NamedTuple):
    """The numbers of known nodes, and of the queues and consumers that are counted."""

    nodes: int
    queues: int
    consumers: int


class WaitCondition(NamedTuple):
    """The condition of a ``wait_for``: numbers that are reached, or reached exactly.

    ``exactly`` is about queues and consumers where these are counted, and about nodes otherwise.
    """

    nodes: int
    queue: str | None
    queues: int | None
    consumers: int
    address: str | None
    exactly: bool

    @property
    def counts_queues(self) -> bool:
        """Whether queues and consumers are counted."""
        return self.queue is not None or self.address is not None

    def met(self, found: FoundInCluster) -> bool:
        """Whether the condition is met."""
        if not self.counts_queues:
            return found.nodes == self.nodes if self.exactly else found.nodes >= self.nodes
        if found.nodes < self.nodes:
            return False
        if self.exactly:
            return found.consumers == self.consumers and self.queues in (None, found.queues)
        return found.consumers >= self.consumers and found.queues >= (self.queues or 0)

    def shown(self, found: FoundInCluster) -> str:
        """Return a text that says how far the condition is met."""
        texts = [f"{found.nodes} of {self.nodes} nodes"]
        what = repr(self.queue) if self.queue is not None else f"the address {self.address!r}"
        if self.queues is not None:
            texts.append(f"{found.queues} of {self.queues} queues of {what}")
        if self.counts_queues:
            texts.append(f"{found.consumers} of {self.consumers} consumers of {what}")
        return ", ".join(texts) + (", exactly" if self.exactly else "")


def check_wanted(wanted: WaitCondition, timeout: object) -> None:
    """Check the conditions of ``wait_for``.

    Raises:
        SettingsError: a part is not allowed, or queues or consumers of nothing are to be counted.
    """
    nodes, queue, queues, consumers, address, exactly = wanted
    _check_count("nodes", nodes, 1, "; the node itself is one")
    if queue is not None:
        # A subscription's queue bears its address, too.
        parse_place(queue, "queue")
    if address is not None:
        check_address(address)
    if queues is not None:
        _check_count("queues", queues, 0, ", or None")
    _check_count("consumers", consumers, 0)
    if (consumers or queues is not None) and not wanted.counts_queues:
        counted = "consumers" if consumers else "queues"
        raise SettingsError("queue", queue, f"the name of the queue whose {counted} are counted, or an address")
    check_bool("exactly", exactly)
    check_seconds("timeout", timeout)


def check_address(address: Any) -> None:
    """Check the address of queues that are listed or counted.  Raises: SettingsError."""
    if parse_place(address, "address").queue is not None:
        raise SettingsError("address", address, "an address, without a queue")


def _check_count(name: str, value: Any, least: int, more: str = "") -> None:
    if type(value) is not int or value < least:
        raise SettingsError(name, value, f"a whole number from {least}{more}")
