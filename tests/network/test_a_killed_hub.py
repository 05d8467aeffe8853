"""A broker that dials others over duplex links is killed: what it had in doubt is known again where it was stored."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from meshq import ConnectionBrokenError
from tests.bridge.kit import numbered
from tests.network.kit import connectors, consuming, until, world


@pytest.mark.parametrize(("source", "target"), [("hub", "spoke"), ("spoke", "hub")])
async def test_what_was_stored_and_not_answered_when_the_dialing_broker_is_killed_is_stored_once(
    source: str, target: str
) -> None:
    async with world() as made:
        await made.start("spoke")
        await made.start("hub", connectors(("spoke", {"duplex": True, "connection_ttl": 3})))
        await made.brokers["hub"].network("to-spoke").wait_for(timeout=30)
        # A consumer at the hub is killed, too.
        with suppress(ConnectionBrokenError):
            async with consuming(made, target, window=1):
                await until(lambda: made.brokers[source].statistics().consumers == 1)
                await made.send(source, "q", [b"first"])
                await trio.sleep(1)
                # Whatever the target says from now on is lost.
                made.network.cut(target, source)
                await made.send(source, "q", numbered(10))
                await trio.sleep(1)
                assert [await made.count(name, "q") for name in (source, target)] == [10, 11]
                await made.kill("hub")
        made.network.heal()
        await made.start("hub")
        async with consuming(made, target, window=1):
            await trio.sleep(20)
            assert [await made.count(name, "q") for name in (source, target)] == [0, 11]
