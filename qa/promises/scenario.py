"""The scenario of one failure under one policy, with the steps of an operator."""

from __future__ import annotations

from typing import Final

import attrs
import trio

from meshq.testing import Simulation
from qa.ha.pair import Policies
from qa.promises.failures import Failure
from qa.promises.pair import PromisePair
from qa.simulation.one_run import run_scenario

SEED: Final = 7
#: The client sends for so long before the failure.
BEFORE_S: Final = 2.0
#: So long after the failure it is seen who serves.
AFTER_S: Final = 10.0
#: After what the operator does, clients are served within these seconds.
MENDED_S: Final = 8.0
#: A message that was confirmed so recently shows that clients are served.
RECENT_S: Final = 3.0
LIMIT_S: Final = 600.0


@attrs.frozen
class Observed:
    """The outcome of a failure.

    ``serving``: the nodes that serve by themselves in the end, before the operator does anything.
    ``without_service_s``: the longest time in which nothing was confirmed until then.
    ``served``: whether clients are served in the end.
    ``lost``, ``doubled``: the numbers of confirmed messages that are gone, and of messages that are there twice.
    """

    serving: tuple[str, ...]
    without_service_s: float
    served: bool
    lost: int
    doubled: int


async def _scenario(simulation: Simulation, policies: Policies, failure: Failure, repair: tuple[str, ...]) -> Observed:
    pair = PromisePair(simulation, policies)
    await pair.form()
    await trio.sleep(BEFORE_S)
    began = trio.current_time()
    await failure(pair)
    await trio.sleep(AFTER_S)
    serving, gap = tuple(pair.serving), pair.without_service(began)
    pair.mend_disks()
    for name in repair:
        pair.nodes[name].start()
        with trio.move_on_after(MENDED_S):
            while not pair.serving:  # noqa: ASYNC110 - looking costs nothing here
                await trio.sleep(0.1)
    if repair:
        await trio.sleep(MENDED_S)
    served = pair.recently(RECENT_S)
    pair.over = True
    await trio.sleep(RECENT_S)
    left = await pair.left()
    return Observed(serving, gap, served, len(set(pair.confirmed) - set(left)), len(left) - len(set(left)))


def observe(policies: Policies, failure: Failure, repair: tuple[str, ...] = ()) -> Observed:
    """Run a failure under a policy; ``repair``: the nodes that an operator starts, one after the other.

    Raises:
        BaseException: the scenario has failed.
    """
    found: list[Observed] = []

    async def scenario(simulation: Simulation) -> None:
        found.append(await _scenario(simulation, policies, failure, repair))

    result = run_scenario(SEED, scenario, duration_s=1.0, limit_s=LIMIT_S)
    if result.failure is not None:
        raise result.failure
    return found[0]
