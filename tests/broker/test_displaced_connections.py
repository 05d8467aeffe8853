"""Connections that have no session make room for others."""

from __future__ import annotations

import attrs
import trio

from meshq.broker.connection._connection_bounds_plan import connection_bounds
from meshq.wire import Attach, FrameType
from tests.broker.test_stream_connections import connect, guarded_doors, listening, log_in


async def test_a_silent_connection_is_ended_for_a_newcomer_who_is_served() -> None:
    async with listening() as parts:
        bounds = attrs.evolve(connection_bounds(256), unauthenticated=4, per_address=4)
        doors = await guarded_doors(parts, bounds)
        silent = [await connect(doors) for _ in range(bounds.unauthenticated)]
        await trio.sleep(0.01)
        newcomer = await connect(doors, source="elsewhere")
        await trio.sleep(0.01)
        assert [peer.ended for peer in silent] == [True, False, False, False]
        assert (len(doors[1].connections), doors[0].counts.turned_away) == (4, 1)
        await log_in(newcomer, "right")
        newcomer.send(FrameType.ATTACH, Attach(ttl_ms=60_000, window_bytes=1 << 20))
        await newcomer.wait_for(FrameType.ATTACHED)
        doors[1].close()
