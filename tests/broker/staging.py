"""Stages and batches of a raw client, and what a node has of them."""

from __future__ import annotations

import struct
from typing import Any

from meshq.broker import Core
from meshq.wire import BY_NUMBER, Answer, FrameType, RunView, header_of
from tests.broker.kit import House, RawClient, make_house
from tests.broker.logs import FakeLog
from tests.broker.test_transactions import Tx

__all__ = ["Staged", "Time", "bodies", "commit", "left", "next_life", "refusal", "said", "start", "two_parts"]


class Time:
    """A clock, ms."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


class Staged(Tx):
    """A stage of a raw client."""

    def __init__(self, client: RawClient, number: int = 1, **name: Any) -> None:
        super().__init__(client, number)
        about = {"sink": "s", "batch": 0, "partition": 0, "attempt": 0, "timeout_ms": 60_000, **name}
        self.stage = int((client.call("open_stage", transaction=number, **about) or {}).get("stage", 0))

    def prepare(self, sent: int | None = None) -> int:
        """Prepare it; return its number, 0 if it was refused."""
        count = self.sent if sent is None else sent
        values = self.client.call("prepare_stage", transaction=self.number, sent=count, acked=0)
        return int((values or {}).get("stage", 0))


def commit(client: RawClient, batch: int, *stages: int, sink: str = "s") -> dict[str, Any]:
    """Commit a batch; return the answer."""
    values = client.call("commit_batch", sink=sink, batch=batch, stages=struct.pack(f"<{len(stages)}I", *stages))
    if client.house.auto:
        client.house.rest()
    return values or {}


def start(**options: Any) -> tuple[House, RawClient]:
    """A house on a journal, with a client."""
    house = make_house(FakeLog(), **options)
    return house, house.client()


def next_life(house: House, last: int | None = None, **options: Any) -> tuple[House, RawClient]:
    """The node is killed and started again, and a second passes."""
    log = house.log.after_crash(last)
    house = make_house(log, records=log.recovered(), **options)
    house.core.second_passed()
    house.rest()
    return house, house.client()


def bodies(core: Core, name: str = "q") -> list[bytes]:
    """The messages that wait in a queue, in order; none if it is not there."""
    queue = core.router.queues.get(name)
    if queue is None:
        return []
    return [
        RunView(view.run.content).body(row)
        for view in queue.runs()
        for row, state in enumerate(view.states)
        if state != 2
    ]


def left(core: Core) -> dict[int, str]:
    """The stages that are there, with their states."""
    return {number: stage.life.state for number, stage in core.transactions.stages.ledger.stages.items()}


def refusal(client: RawClient) -> str:
    """The name of the last refusal, or empty."""
    return BY_NUMBER[client.code].name if client.code else ""


def said(client: RawClient) -> str:
    """The text of the last answer."""
    return header_of(client.last(FrameType.ANSWER), Answer).text


def two_parts(**options: Any) -> tuple[House, RawClient, list[int]]:
    """Two prepared stages of batch 0: partition 1 with one message, partition 0 with three in two runs."""
    house, client = start(**options)
    second, first = Staged(client, 1, partition=1), Staged(client, 2, partition=0)
    second.send("q", b"d")
    first.send("q", b"a", b"b")
    first.send("q", b"c")
    return house, client, [second.prepare(), first.prepare()]
