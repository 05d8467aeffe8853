"""Cells of the delivery matrix in a pair of nodes: many of them at once in one pair, each with names of its own.

All is simulated: the machines with their disks, the network between them, and time.  The clients of a cell go on from
node to node, as programs do.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

import outcome
import trio

from meshq.client import Client
from meshq.settings import AddressSettings
from meshq.testing import Simulation
from qa.ha.pair import TTL_S, Policies, SimulatedPair, replication, shared_store
from qa.matrix.feature import Cell, frozen, leaf
from qa.matrix.stage import Stage, placed
from qa.simulation.one_run import run_scenario

SEED: Final = 7
#: The policies of the nodes, whose backup gives back what it has taken over.
POLICIES: Final[Mapping[str, Policies]] = {
    "replicated": partial(replication, back=True),
    "shared store": partial(shared_store, back=True),
}
#: A cell that takes so long, in simulated seconds, hangs.
CELL_S_MAX: Final = 200.0
#: Within so many seconds all clients are at the node that serves.
GONE_ON_S: Final = 1.0
#: A change of nodes that takes longer does not come to its end; simulated seconds.
CHANGE_S_MAX: Final = 60.0
#: Seconds between two looks at what is waited for.
LOOK_S: Final = 0.05
#: Simulated seconds for everything.
LIMIT_S: Final = 4 * (CELL_S_MAX + 3 * CHANGE_S_MAX)
PATIENT: Final[Mapping[str, Any]] = {
    "reconnect_attempts": math.inf,
    "retry_interval": 0.1,
    "max_retry_interval": 0.5,
    "connection_ttl": TTL_S,
}


class ChangeError(AssertionError):
    """The nodes of a pair did not change."""


class Turn:
    """A change of nodes, which begins when all cells are ready for it."""

    def __init__(self, cells: int) -> None:
        self._missing = cells + 1
        self._arranged = trio.Event()
        self._over = trio.Event()
        self._error: Exception | None = None

    def ready(self) -> None:
        """Count a cell that is ready, or has failed."""
        self._missing -= 1
        if not self._missing:
            self._arranged.set()

    async def make(self, change: Callable[[], Awaitable[None]]) -> None:
        """Make the change.  Checkpoint: always.  Cancellation: it is half done."""
        self.ready()
        await self._arranged.wait()
        try:
            with trio.fail_after(CHANGE_S_MAX):
                await change()
        except trio.TooSlowError as error:
            self._error = error
        self._over.set()

    async def wait(self) -> None:
        """Wait until it is over.

        Checkpoint: if it is not.  Cancellation: nothing has happened.
        Raises: ChangeError: it did not come to its end.
        """
        await self._over.wait()
        if self._error is not None:
            raise ChangeError("the nodes did not change") from self._error


class MatrixPair:
    """A pair, and the cells that are played in it."""

    def __init__(self, simulation: Simulation, kind: str, cells: Sequence[Cell]) -> None:
        self._cells = {f"c{number}.": cell for number, cell in enumerate(cells)}
        settings: dict[str, AddressSettings] = {}
        for prefix, cell in self._cells.items():
            settings |= {
                f"{prefix}{at}": placed(one, prefix) for at, one in cell.column.settings_of(cell.feature).items()
            }
        self._nodes = SimulatedPair(simulation, POLICIES[kind], shared=kind == "shared store", settings=settings)
        self._machine = simulation.node("client")
        self._changes: Mapping[str, Sequence[Callable[[], Awaitable[None]]]] = {
            "before": [],
            "failover": [self._fail_over],
            "failback": [self._fail_back],
            "failover and failback": [self._fail_over, self._fail_back],
        }
        #: The problem of each cell, or None.
        self.problems: dict[str, str | None] = {}

    async def play(self) -> None:
        """Play all cells.

        Checkpoint: always.  Cancellation: cells have no result.
        """
        await self._nodes.form()
        times, missing = list(self._changes), {cell.column.time for cell in self._cells.values()}
        for time in times[: 1 + max(map(times.index, missing))]:
            cells = {prefix: cell for prefix, cell in self._cells.items() if cell.column.time == time}
            await self._play(cells, self._changes[time])

    async def _play(self, cells: Mapping[str, Cell], changes: Sequence[Callable[[], Awaitable[None]]]) -> None:
        turn = Turn(len(cells))

        async def change() -> None:
            for one in changes:
                await one()

        async with trio.open_nursery() as nursery:
            for prefix, cell in cells.items():
                nursery.start_soon(self._play_one, prefix, cell, turn, len(changes))
            await turn.make(change)

    async def _play_one(self, prefix: str, cell: Cell, turn: Turn, changes: int) -> None:
        try:
            with trio.fail_after(CELL_S_MAX):
                result = await outcome.acapture(self._observe, prefix, cell, turn, changes)
                problem = _problem_of(result, cell.expected)
        except trio.TooSlowError:
            problem = f"took longer than {CELL_S_MAX:g} s of its own time"
        self.problems[str(cell)] = problem

    async def _observe(self, prefix: str, cell: Cell, turn: Turn, changes: int) -> Any:
        sending = cell.column.sending
        places = ",".join(url.partition("?")[0] for url in self._nodes.urls.values())
        url = f"({places})?insecure=true"
        connecting = partial(sending.connect, url, env=self._machine.env, **PATIENT)
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(connecting())
            stage = Stage(client=client, notes={}, stack=stack, connect=connecting, sending=sending, prefix=prefix)
            try:
                await cell.feature.arrange(stage)
                await client.flush()
            finally:
                turn.ready()
            await turn.wait()
            await _renewed(client, changes)
            return await cell.feature.act(stage)

    async def _fail_over(self) -> None:
        """Let the node that serves crash as soon as another one may take over, and wait until that serves."""
        await self._until(lambda: self._nodes.whole)
        self._nodes.a.kill()
        await self._until(lambda: self._nodes.serving == ["b"])
        await trio.sleep(GONE_ON_S)

    async def _fail_back(self) -> None:
        """Start the node that has crashed, and wait until it serves again."""
        self._nodes.a.start()
        await self._until(lambda: self._nodes.serving == ["a"])

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():  # noqa: ASYNC110 - looking costs nothing here
            await trio.sleep(LOOK_S)


def _problem_of(result: outcome.Outcome[Any], expected: Any) -> str | None:
    if isinstance(result, outcome.Error):
        if not isinstance(result.error, Exception):
            raise result.error
        return f"raised {leaf(result.error)!r}"
    seen = frozen(result.unwrap())
    return None if seen == expected else f"saw {seen!r}, not {expected!r}"


async def _renewed(client: Client, times: int) -> None:
    """Wait until the session of a client was made anew so often."""
    while client.statistics().renewed < times:  # noqa: ASYNC110 - looking costs nothing here
        await trio.sleep(LOOK_S)


def play_in_pairs(cells: Sequence[Cell]) -> dict[str, str | None]:
    """Play cells in one pair of each kind; return the problem of each cell, or None.

    Raises:
        BaseException: a pair could not be played in.
    """
    found: dict[str, str | None] = {}
    for kind in dict.fromkeys(cell.column.transport for cell in cells):
        found |= _play_in(kind, [cell for cell in cells if cell.column.transport == kind])
    return found


def _play_in(kind: str, cells: Sequence[Cell]) -> dict[str, str | None]:
    problems: dict[str, str | None] = {}

    async def scenario(simulation: Simulation) -> None:
        pair = MatrixPair(simulation, kind, cells)
        await pair.play()
        problems.update(pair.problems)

    result = run_scenario(SEED, scenario, duration_s=1.0, limit_s=LIMIT_S)
    if result.failure is not None:
        raise result.failure
    return {str(cell): problems.get(str(cell), "was not played") for cell in cells}
