"""Queues that keep messages for nobody any more go, and those that are wanted again stay."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from meshq import Client, SecurityError, UsageError
from meshq.bridge import BridgeCounts
from meshq.errors import MeshqError
from meshq.network import _direction, _looks_plan
from meshq.network._demand_machine import DemandRules, DemandTable, Destination, NetworkSubscription, WantedConsumer
from meshq.network._direction import Direction, ForwardingBroker, _Forwarding, _Key
from meshq.network._kept_plan import KeptNames, KeptQueue
from meshq.network._settings import NetworkSettings

A, B = "a" * 32, "b" * 32
DURABLE = NetworkSubscription(address="t", routing="multicast", ways=((B,),), filter="x = 1", durable=True)


class Left:
    """A direction whose source is no broker, and a network consumer on a queue that was left there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.deleted: list[str] = []
        self.warnings: list[tuple[str, str]] = []
        self.error: MeshqError | None = None
        monkeypatch.setattr(Direction, "_carry", self._carry)
        self.names = KeptNames("c", "b:1", A)
        made = Direction(
            NetworkSettings(name="c", uri="static:(tcp://b:1)", conduit_subscriptions=False, **settings),
            DemandTable(DemandRules(node_id=A, conduit=False)),
            source=cast("Client", SimpleNamespace(delete_queue=self._delete)),
            target=cast("Client", None),
            wall=cast("Any", None),
            counts=BridgeCounts(),
            warn=lambda event, text, cause: self.warnings.append((event, text)),
            changed=lambda: None,
            names=self.names,
            claimed=False,
        )
        self.direction, made.broker = made, ForwardingBroker(node_id=A, name="a", store=b"s")
        self.kept = self.names.name("t", "x = 1", 0)
        # What is left is known by its name alone, without the filter.
        self.key = _Key(B, Destination("multicast", "t"), "", 0, 0, self.kept)

    async def _carry(self, key: _Key, forwarding: _Forwarding) -> None:
        forwarding.over = True

    async def _delete(self, name: str) -> None:
        self.deleted.append(name)
        if self.error is not None:
            raise self.error

    def wanted(self, *told: NetworkSubscription) -> None:
        """Have the other broker want these."""
        self.direction.table.replace(B, told)
        self.direction.compare({})

    def leave(self) -> _Forwarding:
        """Begin to forward what was left."""
        made = self.direction._running[self.key] = _Forwarding(WantedConsumer(self.key.destination, "", 0, (B,), True))
        made.leave(kept=True)
        return made


async def test_a_queue_with_a_filter_that_is_wanted_again_is_not_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    left = Left(monkeypatch)
    left.wanted()
    one = left.leave()
    assert not one.stopping.is_set()
    left.wanted(DURABLE)
    assert one.stopping.is_set()
    await left.direction._forward(left.key, one)
    assert left.deleted == []
    left.wanted()
    await left.direction._forward(left.key, left.leave())
    assert left.deleted == [f"t::{left.kept}"]


async def test_a_queue_that_could_not_be_deleted_is_looked_for_again_when_nothing_leaves_it_out_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = Left(monkeypatch, retry_interval=5, max_retry_interval=5)
    left.wanted()
    left.error = UsageError("not now")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(left.direction._forward, left.key, left.leave())
        await trio.sleep(1)
        # A look would leave the queue out, as one that is being forwarded.
        left.direction._looks.of = B
        await trio.sleep(5)
        assert (left.direction._running, left.direction._looks.of) == ({}, "")


@pytest.mark.parametrize("how", ["refused", "the same", "others", "too many"])
async def test_looks_after_which_no_other_queue_goes_are_ever_further_apart(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    looks = 0

    async def named(
        client: Client, node_id: str, beginning: str, *, most: int, target_id: str = ""
    ) -> tuple[list[str], bool]:
        nonlocal looks
        looks += 1
        topic = "t" if how in ("refused", "the same") else f"t{looks}"
        return [f"{topic}::{left.names.name(topic, '', 0)}"], how != "refused"

    if how == "too many":
        monkeypatch.setattr(_direction, "KEPT_QUEUES_MAX", 5)
        monkeypatch.setattr(_looks_plan, "GONE_MAX", 5)
    monkeypatch.setattr(_direction, "kept_queues", named)
    left = Left(monkeypatch, retry_interval=1)
    left.error = SecurityError("no") if how == "refused" else None
    left.wanted()
    with trio.move_on_after(100):
        await left.direction.serve()
    assert (looks >= 90) if how == "others" else (3 <= looks <= 15)


async def test_where_more_queues_than_are_read_may_be_without_a_link_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def named(
        client: Client, node_id: str, beginning: str, *, most: int, target_id: str = ""
    ) -> tuple[list[str], bool]:
        # Those of all places together are too many; those of this link are none.
        return [], beginning == "$meshq.network.c"

    monkeypatch.setattr(_direction, "kept_queues", named)
    left = Left(monkeypatch)
    left.direction._names = KeptNames("c", "b:1", A, ["b:1"])
    left.wanted()
    with trio.move_on_after(1):
        await left.direction.serve()
    (told,) = left.warnings
    assert told == ("network_queues_max", "more than 10,000 queues keep messages for c: some may be without a link")
    assert not left.direction._looks.left_out


def test_many_queues_that_are_there_already_are_told_apart_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    left = Left(monkeypatch)
    queues = [KeptQueue("t", f"n{number}", 0) for number in range(_direction.KEPT_QUEUES_MAX)]
    forwarding = _Forwarding(WantedConsumer(left.key.destination, "", 0, (B,), True))
    left.direction._running = {left.key._replace(kept=one.name): forwarding for one in queues}
    begun = time.process_time()
    left.direction._leave(cast("Any", None), queues, B, more=False)
    # One set for all of them: with one for each it was more than a second.
    assert time.process_time() - begun < 0.2
