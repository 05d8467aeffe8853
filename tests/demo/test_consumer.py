"""A consumer of the demo: what it says of a delivery, when it acknowledges, and how it ends."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio

from meshq import errors
from meshq.demo import _consumer_process
from meshq.demo import _report_format as report
from meshq.demo._consumer_process import Receiver, acknowledge, describe
from meshq.demo._page_format import page_body, page_id, page_properties

LINE = b"2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z"
PROPERTIES = {"carrier": "UA", "origin": "EWR", "month": 1}
KEY = b"2013-1-1 UA 1545 EWR"


@attrs.frozen(kw_only=True)
class FakeDelivery:
    body: bytes = LINE
    properties: dict[str, Any] = PROPERTIES
    duplicate_id: bytes | None = KEY
    redelivered: bool = False


def told(*deliveries: FakeDelivery) -> report.Delivered:
    return describe(1, 2, list(deliveries), "node-3")[1]  # type: ignore[arg-type]


def test_the_key_is_the_duplicate_id_the_carrier_a_property_and_the_delay_from_the_body() -> None:
    cancelled = FakeDelivery(body=LINE.replace(b",2,830", b",NA,830"), redelivered=True)
    said = told(FakeDelivery(), cancelled)
    assert said == report.Delivered(
        batch=1,
        at_ns=2,
        keys=[KEY, KEY],
        carriers=["UA", "UA"],
        delays=[2, None],
        flags=bytes([0, report.REDELIVERED]),
        node="node-3",
    )


@pytest.mark.parametrize(
    "delivery",
    [
        FakeDelivery(duplicate_id=b"2013-1-1 UA 1546 EWR"),
        FakeDelivery(duplicate_id=None),
        FakeDelivery(properties=PROPERTIES | {"carrier": "AA"}),
        FakeDelivery(properties=PROPERTIES | {"origin": "JFK"}),
        FakeDelivery(properties=PROPERTIES | {"month": 2}),
        FakeDelivery(properties={}),
        FakeDelivery(body=LINE.replace(b"1545", b"1546")),
        FakeDelivery(body=b"no flight at all"),
    ],
)
def test_a_message_whose_parts_do_not_fit_each_other_is_marked(delivery: FakeDelivery) -> None:
    assert told(delivery).flags == bytes([report.ALTERED])


class FakeConsumer:
    """A consumer to which batches come when the test says so."""

    def __init__(self) -> None:
        self.send, self._receive = trio.open_memory_channel[list[FakeDelivery]](100)
        self.acknowledged: list[int] = []
        self.error: errors.MeshqError | None = None
        # Closed while acknowledgements have to wait.
        self.gate = trio.Event()
        self.gate.set()

    async def receive_many(self, most: int, timeout: float) -> list[FakeDelivery]:  # noqa: ASYNC109 (as the real one)
        with trio.move_on_after(timeout):
            return await self._receive.receive()
        return []

    async def ack(self, *deliveries: FakeDelivery, confirm: bool) -> None:
        assert confirm
        self.acknowledged.append(len(deliveries))
        await self.gate.wait()
        if self.error is not None:
            raise self.error

    async def __aenter__(self) -> FakeConsumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class FakeClient:
    """A client whose only queue is that consumer's."""

    def __init__(self, consumer: FakeConsumer) -> None:
        self._consumer = consumer
        self.node_name = "node-1"
        self.happen, self._events = trio.open_memory_channel[Any](100)

    async def __aenter__(self) -> FakeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def consumer(self, queue: str, *, window: int) -> FakeConsumer:
        return self._consumer

    def events(self) -> Any:
        return self._events

    def statistics(self) -> Any:
        return types.SimpleNamespace(node_name=self.node_name)


class Hearer:
    """The parent: keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[report.Report] = []

    async def say(self, said: report.Report) -> None:
        await trio.lowlevel.checkpoint()
        self.heard.append(said)

    def kinds(self) -> list[str]:
        """What was heard since the last look, without the idle ones."""
        heard, self.heard = self.heard, []
        return [said.kind for said in heard if said.kind != "idle"]


class Bench:
    """A receiver at work, with a parent and a client that are the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, roams: bool = False) -> None:
        self.parent = Hearer()
        self.consumer = FakeConsumer()
        self.client = FakeClient(self.consumer)
        self.receiver = Receiver(self.parent, 600, roams=roams)  # type: ignore[arg-type]
        self.connected: list[tuple[str, bool]] = []
        monkeypatch.setattr(_consumer_process, "connect", self._connect)

    def _connect(self, url: str, *, use_topology: bool, **settings: Any) -> FakeClient:
        self.connected.append((url, use_topology))
        return self.client

    def come(self, *sizes: int) -> None:
        """Batches of these sizes arrive."""
        for size in sizes:
            self.consumer.send.send_nowait([FakeDelivery()] * size)

    async def kinds(self) -> list[str]:
        """What was said until everything came to rest."""
        await trio.testing.wait_all_tasks_blocked()
        return self.parent.kinds()


async def test_each_batch_is_reported_before_it_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.receiver.work, "url")
        assert await bench.kinds() == ["ready"]
        bench.consumer.gate = trio.Event()
        bench.come(3)
        assert await bench.kinds() == ["delivered"]
        assert bench.consumer.acknowledged == [3]
        bench.consumer.gate.set()
        assert await bench.kinds() == ["settled"]
        bench.receiver.obey(report.End())


async def test_without_tickets_it_receives_and_acknowledges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.receiver.work, "url")
        await bench.kinds()
        bench.receiver.obey(report.AckQuota(0))
        assert await bench.kinds() == ["holding"]
        bench.come(3, 4, 5)
        assert await bench.kinds() == ["delivered"] * 3
        assert bench.consumer.acknowledged == []
        bench.receiver.obey(report.AckQuota(1))
        assert await bench.kinds() == ["acknowledging", "settled"]
        assert bench.consumer.acknowledged == [3]
        bench.receiver.obey(report.AckQuota(-1))
        assert await bench.kinds() == ["settled"] * 2
        bench.receiver.obey(report.End())


async def test_it_holds_only_when_the_acknowledgement_under_way_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.receiver.work, "url")
        bench.consumer.gate = trio.Event()
        bench.come(3)
        await bench.kinds()
        bench.receiver.obey(report.AckQuota(0))
        assert await bench.kinds() == []
        bench.consumer.gate.set()
        assert await bench.kinds() == ["settled", "holding"]
        bench.receiver.obey(report.End())
        bench.receiver.obey(report.AckQuota(-1))


async def test_nothing_is_taken_while_the_connection_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.receiver.work, "url")
        await bench.kinds()
        reason = errors.ConnectionBrokenError("gone")
        bench.client.happen.send_nowait(_consumer_process.Disconnected(at=0.0, peer="p", reason=reason, final=False))
        assert await bench.kinds() == ["connection"]
        # What it had begun to wait for before may still end with nothing.
        await trio.sleep(1)
        bench.come(3)
        assert await bench.kinds() == []
        bench.client.happen.send_nowait(
            _consumer_process.FailedOver(at=1.0, peer="p", node_id=b"", node_name="", same_node=True)
        )
        assert await bench.kinds() == ["connection", "delivered", "settled"]
        bench.receiver.obey(report.End())


@pytest.mark.parametrize(
    ("error", "confirmed"),
    [
        (None, b"\1\1\1"),
        (errors.UnblockedError("cut"), b"\0\0\0"),
        (errors.CallTimeoutError("late"), b"\0\0\0"),
        (errors.StaleDeliveryError("old"), b"\0\0\0"),
        (errors.StaleDeliveryError("old", results=[None, errors.StaleDeliveryError("x"), None]), b"\1\0\1"),
    ],
)
async def test_what_became_of_an_acknowledgement_is_said_of_each_message(
    error: errors.MeshqError | None, confirmed: bytes
) -> None:
    consumer = FakeConsumer()
    consumer.error = error
    deliveries: Sequence[Any] = [FakeDelivery()] * 3
    assert await acknowledge(consumer, list(deliveries)) == confirmed  # type: ignore[arg-type]


LINES = [LINE.replace(b"1545", b"%d" % number) for number in range(1, 151)]
PAGE = FakeDelivery(body=page_body(LINES), properties=page_properties(7, 150), duplicate_id=page_id(7))


def test_a_page_is_as_many_flights_as_it_has_lines_and_is_acknowledged_for_all_of_them() -> None:
    again = attrs.evolve(PAGE, redelivered=True)
    batch, said = describe(4, 2, [FakeDelivery(), again], "node-1")  # type: ignore[list-item]
    assert said.keys == [KEY, *(b"2013-1-1 UA %d EWR" % number for number in range(1, 151))]
    assert said.flags == bytes([0, *[report.REDELIVERED] * 150])
    assert batch.settled(b"\0\1") == report.Settled(4, b"\0" + b"\1" * 150)


@pytest.mark.parametrize(
    "delivery",
    [
        attrs.evolve(PAGE, duplicate_id=page_id(8)),
        attrs.evolve(PAGE, properties=page_properties(7, 149)),
        attrs.evolve(PAGE, body=page_body(LINES[1:])),
        attrs.evolve(PAGE, body=page_body([*LINES[1:], b"no flight at all"])),
        # No large message.
        attrs.evolve(PAGE, body=page_body(LINES[:9]), properties=page_properties(7, 9)),
    ],
)
def test_a_page_whose_parts_do_not_fit_each_other_is_marked(delivery: FakeDelivery) -> None:
    assert told(delivery).flags == bytes([report.ALTERED])


async def test_a_consumer_that_moves_leaves_what_it_holds_and_goes_on_there(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.receiver.work, "here")
        bench.receiver.obey(report.AckQuota(0))
        await bench.kinds()
        bench.come(3, 4)
        assert await bench.kinds() == ["delivered"] * 2
        bench.client.node_name = "node-2"
        bench.receiver.obey(report.MoveTo("there"))
        await trio.testing.wait_all_tasks_blocked()
        heard, bench.parent.heard = [said for said in bench.parent.heard if said.kind != "idle"], []
        assert heard == [
            report.Settled(1, bytes(3)),
            report.Settled(2, bytes(4)),
            report.Connection(up=True, node="node-2"),
        ]
        bench.come(1)
        assert await bench.kinds() == ["delivered", "settled"]
        assert bench.consumer.acknowledged == [1]
        bench.receiver.obey(report.End())
    assert bench.connected == [("here", False), ("there", False)]


async def test_only_one_that_roams_goes_to_other_nodes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, roams=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.receiver.work, "here")
        await bench.kinds()
        bench.receiver.obey(report.End())
    assert bench.connected == [("here", True)]
