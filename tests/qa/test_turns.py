"""The orders to step back in a simulation: each term that ends is noted in the history."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import trio

from meshq.testing import MemoryRole, Swarm
from qa.simulation.broker import BrokerNode
from qa.simulation.turns import PAUSE_S, Turns


class FakeBroker:
    """A broker that a test lets close its store, and that notes when it was looked at."""

    def __init__(self) -> None:
        self.role = MemoryRole()
        self.active = True
        self.stepping_back = True
        self.history = SimpleNamespace(note=lambda text: None)
        #: For each look: whether the broker still had its store open.
        self.looks: list[bool] = []

    def look_at_waiting(self) -> None:
        self.looks.append(self.stepping_back)


@pytest.mark.parametrize("cut", [False, True], ids=["to its end", "cut off by the end of the faults"])
async def test_a_term_that_has_ended_is_noted_once_the_store_is_closed(cut: bool) -> None:
    broker = FakeBroker()
    turns = Turns(cast(BrokerNode, broker), Swarm(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        # Until the order; the broker is not asked twice.
        await trio.sleep(PAUSE_S[1])
        broker.active = False
        if cut:
            nursery.cancel_scope.cancel()
        else:
            await trio.sleep(PAUSE_S[1])
            assert broker.looks == []
            broker.stepping_back = False
            await trio.sleep(PAUSE_S[1])
            assert broker.looks == [False]
            nursery.cancel_scope.cancel()
    broker.stepping_back = False
    await turns.finish()
    assert broker.looks == [False]
