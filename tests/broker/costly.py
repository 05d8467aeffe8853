"""Runs that are much work for filters, where a step is little of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meshq import limits
from meshq.broker.queue._run_messages import RunMessages
from meshq.settings import AddressSettings
from meshq.wire import (
    KIND_CONTROL,
    KIND_HEADERS,
    KIND_PROPERTIES,
    Envelope,
    encode_map,
)
from tests.broker.kit import House, RawClient, make_core
from tests.broker.logs import FakeLog

#: A step is so much work here.
BUDGET = 5
ROWS = 12
WANTED = [b"1", b"4", b"7", b"10"]
FILTER = "k = 1 OR k = 1"


class Steps:
    """Counts messages that are put to filters, and does steps of a house."""

    def __init__(self) -> None:
        self.looks = 0
        self.longest = 0
        self.calls = 0

    def watch(self, house: House) -> House:
        def wake() -> None:
            self.calls += 1

        house.host.wake = wake
        return house

    def one(self, house: House) -> None:
        before = self.looks
        house.core.resume()
        house.after_frame()
        self.longest = max(self.longest, self.looks - before)

    def all(self, house: House) -> int:
        """Go on until nothing waits; no step is more than it may be.  Returns how many there were."""
        count = 0
        while house.core.pending.fair_scheduler or house.core.running_operations or house.core.pending.unfinished:
            self.one(house)
            count += 1
            assert count < 1_000, "it ends"
        house.check()
        return count


def counting_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """Steps of a house, in which little is done."""
    counted = Steps()
    move = RunMessages.move

    def counting(self: RunMessages, row: int, *, properties: bool) -> None:
        counted.looks += 1
        move(self, row, properties=properties)

    monkeypatch.setattr(RunMessages, "move", counting)
    monkeypatch.setattr(limits, "SCAN_MESSAGES_MAX", BUDGET)
    yield counted
    assert counted.longest <= 2 * BUDGET


def with_k(rows: int = ROWS, **headers: Any) -> list[Envelope]:
    """Every third message of a run is wanted."""
    kind = 4 << 8 | KIND_PROPERTIES | (KIND_HEADERS if headers else 0) | (KIND_CONTROL if headers.keys() & "xdg" else 0)
    named = encode_map(headers) if headers else b""
    return [Envelope(kind, b"", named, encode_map({"k": int(row % 3 == 0)})) for row in range(rows)]


def numbered(rows: int = ROWS) -> list[bytes]:
    return [b"%d" % row for row in range(1, rows + 1)]


def fill(
    client: RawClient, address: str, rows: int = ROWS, producer: bytes = b"producer-16bytes", **headers: Any
) -> int:
    channel = client.produce(address, producer)
    client.put(channel, *numbered(rows), envelopes=with_k(rows, **headers))
    return channel


def read(house: House, queue: str) -> list[bytes]:
    return [body for view in house.queue(queue).runs() for body in bodies_of(view)]


def bodies_of(view: Any) -> list[bytes]:
    messages = RunMessages(view.run)._view
    return [bytes(messages.body(row)) for row in range(view.run.content.rows) if view.states[row] != 2]


def sieve(client: RawClient, kind: str = "queue", filter: str = FILTER) -> str:
    """Make an address ``in`` that sorts messages; returns the queue that gets some."""
    if kind == "divert":
        client.call("create_queue", name="in")
        client.call("create_queue", name="out")
        client.call("create_divert", name="d", address="in", forwarding_address="out", filter=filter, exclusive=True)
        return "out"
    client.call("create_queue", name="some", address="in", routing="multicast", filter=filter)
    return "some"


def dead_letters(**more: Any) -> dict[str, AddressSettings]:
    """What leaves ``work`` for good goes to ``in``."""
    return {"work": AddressSettings(dead_letter_address="in", expiry_address="in", **more)}


def lettered(
    steps: Steps,
    *,
    log: FakeLog | None = None,
    now_ms: Callable[[], int] = lambda: 1_000_000,
    queue: bool = True,
    **more: Any,
) -> tuple[House, RawClient]:
    """A house where what leaves ``work`` is sorted, and ``all`` gets it all; ``queue``: whether ``work`` is made."""
    house = steps.watch(House(make_core(log or FakeLog(), settings=dead_letters(**more), now_ms=now_ms)))
    client = house.client()
    sieve(client)
    client.call("create_queue", name="all", address="in", routing="multicast")
    if queue:
        client.call("create_queue", name="work")
    return house, client
