"""The alarm of a node: it goes off when something is due, and does not spin before."""

from __future__ import annotations

import pytest
import trio

from tests.node.lives import lives

#: Far more than a broker takes for one message.
STEPS_MAX = 20_000


class Steps(trio.abc.Instrument):
    """Ends a scope when tasks take so many steps that something spins: a clock that jumps stands still meanwhile."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self.taken = 0
        self._scope = scope

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """One more."""
        self.taken += 1
        if self.taken == STEPS_MAX:
            self._scope.cancel()


@pytest.mark.parametrize("delay", [0.1, 0.3, 0.7, 1.1])
async def test_what_is_due_in_less_than_a_clock_can_tell_is_waited_for(delay: float) -> None:
    """Times are added up with rounding: a clock that was told to go to the very time may stand a hair before."""
    async with lives() as node, node.client() as client, client.consumer("q") as consumer:
        for number in range(60):
            await trio.sleep(0.012345678901 * number)
            with trio.CancelScope() as scope:
                steps = Steps(scope)
                trio.lowlevel.add_instrument(steps)
                try:
                    began = trio.current_time()
                    await client.send("q", b"x", delay=delay)
                    delivery = await consumer.receive(timeout=10)
                    assert delivery is not None
                    assert trio.current_time() - began >= delay - 1e-6
                    await delivery.ack(confirm=True)
                finally:
                    trio.lowlevel.remove_instrument(steps)
            if scope.cancelled_caught:
                # It would not end either.
                node.process.kill()
                raise AssertionError(f"{steps.taken} steps for one message")
