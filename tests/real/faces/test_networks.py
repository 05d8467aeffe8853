"""Networks of brokers, over every face."""

from __future__ import annotations

from contextlib import nullcontext
from typing import NoReturn

import pytest

from meshq import CallTimeoutError, ClosedError, NetworkConnector, NotActiveError, NotFoundError, SettingsError
from tests.real.faces.kit import ACCEPTORS, WAIT_S, Face, TrioFace, promise, received


@promise
async def test_a_network_connector_is_added_asked_waited_for_and_removed(face: Face) -> None:
    async with (
        face.broker("there", acceptors=ACCEPTORS) as there,
        face.broker("here") as broker,
        face.client(there) as other,
        face.client(broker) as client,
        other.consumer("q") as consumer,
    ):
        await broker.add_network(NetworkConnector("out", f"static:({there.urls[0]})"))
        link = broker.network("out")
        await link.wait_for(queue="q", consumers=1, timeout=WAIT_S)
        assert (link.name, link.settings.network_ttl) == ("out", 1) and repr(link).startswith("<NetworkConnector 'out'")
        await client.send("q", b"x")
        assert (await received(consumer)).path == ("here",)
        assert [(one.name, one.state, one.kept) for one in link.bridges()] == [("out", "linked", 0)]
        assert [one.address for one in link.subscriptions()] == ["q"]
        with pytest.raises(CallTimeoutError) as caught:
            await link.wait_for(bridges=2, timeout=0.02)
        assert caught.value.outcome == "not_done"
        with pytest.raises(SettingsError):
            await link.wait_for(bridges=-1)
        with pytest.raises(SettingsError):
            await broker.add_network(NetworkConnector("out", f"static:({there.urls[0]})"))
        with pytest.raises(SettingsError):
            await broker.remove_network(5)
        with pytest.raises(NotFoundError):
            await broker.remove_network("none")
        await broker.remove_network("out")
        with pytest.raises(NotFoundError):
            broker.network("out")


@promise
async def test_a_broker_that_is_not_active_has_no_connectors_added_or_removed(face: Face) -> None:
    broker = face.broker("here", services=[NetworkConnector("out", "static:(tcp://127.0.0.1:1)")])
    async with broker as entered:
        link = entered.network("out")
        assert [one.state for one in link.bridges()] == ["connecting"] and link.subscriptions() == ()
    for call in (
        lambda: entered.add_network(NetworkConnector("in", "static:(tcp://127.0.0.1:1)")),
        lambda: entered.remove_network("out"),
    ):
        with pytest.raises(NotActiveError):
            await call()
    for ask in (lambda: link.bridges(), lambda: link.subscriptions()):
        # On trio itself the program has the connector, which is there also without a broker.
        with pytest.raises(NotActiveError) if type(face) is not TrioFace else nullcontext():
            ask()
    with pytest.raises(NotActiveError):
        await link.wait_for(timeout=0.1)


@promise
async def test_a_part_of_a_living_broker_that_is_closed_says_so_and_not_that_the_broker_is_not_active(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def closed(*_: object, **__: object) -> None:
        raise ClosedError("the connector is closed")

    def closed_too(*_: object) -> NoReturn:
        raise ClosedError("the connector is closed")

    async with face.broker("here", services=[NetworkConnector("out", "static:(tcp://127.0.0.1:1)")]) as entered:
        link = entered.network("out")
        monkeypatch.setattr(NetworkConnector, "wait_for", closed)
        monkeypatch.setattr(NetworkConnector, "bridges", closed_too)
        with pytest.raises(ClosedError, match=r"^the connector is closed"):
            await link.wait_for(timeout=0.1)
        with pytest.raises(ClosedError, match=r"^the connector is closed"):
            link.bridges()
