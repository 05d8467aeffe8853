"""The services of a broker, found by their names and kinds."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import ClassVar

import pytest
import trio

from meshq import Bridge, BridgeStatistics, Broker, ClusterConnection, ServiceInThread, abc
from meshq.errors import NotFoundError, SettingsError, UsageError


class Own(abc.Service):
    """A service of a program's own, which does nothing, or fails at once."""

    kind: ClassVar[str] = "clock"

    def __init__(self, name: str, *, fails: bool = False) -> None:
        self.name = name
        self.announced = 0
        self.served = False
        self._fails = fails

    def announce(self, control: abc.NodeControl) -> None:
        self.announced += 1

    async def serve(self, broker: abc.LocalBroker, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        if self._fails:
            raise RuntimeError("the clock is broken")
        self.served = True
        try:
            await trio.sleep_forever()
        finally:
            self.served = False


class PausedService(Own, abc.Controllable):
    """A service that notes what it is asked, and in which thread."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, int]] = []

    def statistics(self) -> BridgeStatistics:
        self.calls.append(("statistics", threading.get_ident()))
        return Bridge(self.name, queue="q", target="tcp://127.0.0.1:1").statistics()

    def pause(self) -> None:
        self.calls.append(("pause", threading.get_ident()))

    def resume(self) -> None:
        self.calls.append(("resume", threading.get_ident()))


MESH = ClusterConnection("one", connector="me")
BRIDGE = Bridge("one", queue="q", target="me")
OTHER = Bridge("two", queue="q", target="me")
CLOCK = Own("tick")


def broker_with(*services: abc.Service) -> Broker:
    return Broker("hq", data_dir=None, connectors={"me": "inproc://hq"}, services=services)


def test_a_service_is_found_by_its_name_and_by_its_kind_where_several_have_the_name() -> None:
    broker = broker_with(MESH, BRIDGE, OTHER, CLOCK)
    assert broker.service("two") is OTHER
    assert broker.service("tick") is CLOCK
    assert broker.service("tick", kind="clock") is CLOCK
    assert broker.service("one", kind="bridge") is BRIDGE
    assert broker.service("one", kind="cluster_connection") is MESH is broker.cluster("one")


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("three", None, "the broker 'hq' has no service 'three'; known: 'one', 'one', 'two', 'tick'"),
        ("two", "cluster_connection", "the broker 'hq' has no cluster connection 'two'; known: 'one'"),
        ("tick", "bell", "the broker 'hq' has no bell 'tick'; known: none"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(name: str, kind: str | None, text: str) -> None:
    with pytest.raises(NotFoundError, match=f"^{re.escape(text)}$"):
        broker_with(MESH, BRIDGE, OTHER, CLOCK).service(name, kind=kind)


def test_a_name_of_several_kinds_needs_the_kind() -> None:
    with pytest.raises(UsageError, match="several services 'one': say kind='cluster_connection' or 'bridge'"):
        broker_with(MESH, BRIDGE).service("one")


def test_services_of_one_kind_have_different_names() -> None:
    with pytest.raises(SettingsError, match="different names for services of the kind 'clock'"):
        broker_with(Own("tick"), Own("tick"))
    broker_with(Own("tick"), Own("tack"))


def test_services_that_operators_pause_by_name_have_different_names_whatever_their_kind() -> None:
    with pytest.raises(SettingsError, match="different names for services that can be paused"):
        broker_with(PausedService("one"), BRIDGE)
    broker_with(PausedService("one"), MESH, OTHER, Own("two"))


async def test_a_broker_in_a_thread_has_its_services_by_name() -> None:
    counter = PausedService("out")
    hosted = broker_with(MESH, counter, CLOCK, Bridge("tick", queue="q", target="me")).run_in_thread()
    with pytest.raises(NotFoundError, match="no service 'three'"):
        hosted.service("three")
    with pytest.raises(UsageError, match="several services 'tick'"):
        hosted.service("tick")
    assert (hosted.service("one").name, hosted.service("one").kind) == ("one", "cluster_connection")
    assert repr(hosted.service("tick", kind="clock")) == repr(CLOCK)
    service = hosted.service("out")
    async with hosted:
        service.pause()
        service.resume()
        assert service.statistics().name == "out"
    assert [call for call, _ in counter.calls] == ["pause", "resume", "statistics"]
    assert threading.get_ident() not in {thread for _, thread in counter.calls}


@pytest.mark.parametrize("call", [ServiceInThread.statistics, ServiceInThread.pause, ServiceInThread.resume])
def test_a_service_without_a_pause_says_so(call: Callable[[ServiceInThread], object]) -> None:
    service = broker_with(CLOCK).run_in_thread().service("tick")
    with pytest.raises(UsageError, match="the service 'tick' of the kind 'clock' has no counters and no pause"):
        call(service)
