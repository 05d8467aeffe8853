"""The simulated broker and its clients: a minute of faults, then peace, then the accounts.

``run_seed`` is one seed.  Afterwards everything that was promised is checked over the one history: nothing lost,
nothing from nowhere, nothing twice, order kept, counters that balance with a recount from the journal, recovery
that comes to the same state again, nothing left over.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, Final

import trio

from meshq.abc import Env
from meshq.broker import Core, CoreSettings, Recovery
from meshq.errors import MeshqError, invariant
from meshq.node import Broker
from meshq.settings import JournalSettings
from meshq.store import Journal
from meshq.testing._checkers_end import check_history
from meshq.testing._history import History, body_of, uid_of
from meshq.testing._network import MemoryNetwork
from meshq.testing._node import SimNode
from meshq.testing._recovery import record_recoveries
from meshq.testing._simulation import Simulation, SimulationResult, simulate
from meshq.testing._workload import QUEUES, SETTINGS, URL, Actor, Receiver, Sender, Uids
from meshq.wire import RunView

DIRECTORY: Final = "/data/broker"
#: Simulated seconds of faults, and the least that a seed has to have seen.
DURATION_S: Final = 60.0
SENDS_MIN: Final = 300
FAULTS_MIN: Final = 3
#: Seconds after healing in which everything has to work again.
HEALING_S: Final = 10.0
#: Simulated seconds after which a seed that is not done has failed.
LIMIT_S: Final = 600.0


class BrokerProcess:
    """The broker as a process: it may die by itself, and somebody starts it again."""

    def __init__(self, node: SimNode, history: History) -> None:
        self.node = node
        self.history = history
        self.broker: Broker | None = None

    def start(self) -> None:
        """Start it, in a new life if it is dead."""
        if self.node.life.dead:
            self.node.start()
        self.node.spawn(self._run)

    async def _run(self) -> None:
        env = self.node.env
        life = self.node.life
        broker = Broker(
            "broker",
            data_dir=DIRECTORY,
            journal=JournalSettings(segment_bytes=64 * 1024),
            acceptors=[f"{URL}?insecure=true"],
            queues=QUEUES,
            memory_limit=2 << 20,
            env=env,
        )
        try:
            async with broker:
                self.broker = broker
                await trio.sleep_forever()
        except MeshqError as error:
            self.history.note(f"the broker ends: {error!r}")
            if not life.dead:
                self.node.kill()


class Faults:
    """What goes wrong in a minute, as the seed decides."""

    def __init__(self, simulation: Simulation, broker: BrokerProcess, actors: list[Actor], history: History) -> None:
        invariant(isinstance(simulation.fabric, MemoryNetwork), "the scenario has a memory network")
        self.swarm = simulation.swarm
        self.fabric: Any = simulation.fabric
        self.broker = broker
        self.actors = actors
        self.history = history
        self.rng = self.swarm.rng("faults")
        self.happened = 0
        self._kinds: dict[str, Callable[[], None]] = {
            "kill": broker.node.kill,
            "power": broker.node.power_off,
            "fuse_power": lambda: broker.node.fuse(self.rng.randrange(1, 40)),
            "fuse_kill": lambda: broker.node.fuse(self.rng.randrange(1, 40), power=False),
            "sync_eio": lambda: self._inject("sync", errno.EIO),
            "write_eio": lambda: self._inject("write", errno.EIO),
            "write_enospc": lambda: self._inject("write", errno.ENOSPC),
            "open_enospc": lambda: self._inject("open", errno.ENOSPC),
            "reset": lambda: self._linkwise(self.fabric.reset),
            "half_open": lambda: self._linkwise(self.fabric.silence),
            "cut_there": lambda: self._linkwise(self.fabric.cut),
            "cut_back": lambda: self._linkwise(lambda one, other: self.fabric.cut(other, one)),
            "partition": lambda: self._linkwise(lambda one, other: self.fabric.partition([one], [other])),
            "pause": broker.node.pause,
            "pause_client": lambda: self.rng.choice(actors).node.pause(),
            "kill_client": lambda: self.rng.choice(actors).node.kill(),
            "slow": lambda: self._linkwise(lambda one, other: self.fabric.slow(one, other, 20_000.0)),
            "clock": self._clock,
        }
        for kind in self._kinds:
            self.swarm.count(f"fault.{kind}", 0)

    def _inject(self, call: Any, error: int) -> None:
        self.broker.node.disk.faults.inject(call, error, skip=self.rng.randrange(5))

    def _linkwise(self, act: Callable[[str, str], object]) -> None:
        act(self.rng.choice(self.actors).node.name, "broker")

    def _clock(self) -> None:
        self.broker.node.wall.offset_s += self.rng.choice((-7_200.0, 3_600.0))

    async def run(self, until: float) -> None:
        """Break things until then.

        Checkpoint: always.  Cancellation: ends it.
        """
        on = [kind for kind in self._kinds if self.swarm.on(f"fault.{kind}")] or list(self._kinds)
        pause = self.rng.choice((2.0, 6.0, 15.0))
        while trio.current_time() < until or self.happened < FAULTS_MIN:
            await trio.sleep(pause * (0.5 + self.rng.random()))
            kind = self.rng.choice(on)
            self.history.note(kind)
            self.swarm.count(f"fault.{kind}")
            self.happened += 1
            if not (self.broker.node.life.dead and kind in ("kill", "power", "pause")):
                self._kinds[kind]()
            await trio.sleep(self.rng.expovariate(0.5))
            self.mend()

    def mend(self) -> None:
        """End what goes on, and start whoever is dead."""
        self.fabric.heal()
        for actor in self.actors:
            for one, other in ((actor.node.name, "broker"), ("broker", actor.node.name)):
                self.fabric.slow(one, other, None)
            actor.node.resume()
            if actor.node.life.dead:
                actor.node.start()
                actor.node.spawn(actor.run)
        self.broker.node.resume()
        self.broker.node.disk.faults.clear()
        if self.broker.node.life.dead:
            self.broker.start()


async def scenario(simulation: Simulation) -> History:
    """One seed's minute, and its accounts.

    Checkpoint: always.  Cancellation: the simulation ends.
    Raises: HistoryError for a promise that was broken.
    """
    history = History(trio.current_time)
    rng = simulation.swarm.rng("actors")
    broker = BrokerProcess(simulation.node("broker"), history)
    uids = Uids()

    def rng_of(name: str) -> Any:
        return simulation.swarm.rng(f"actor/{name}")

    actors: list[Actor] = [
        Sender(simulation.node("sender"), history, uids, rng_of("sender")),
        Sender(simulation.node("second"), history, uids, rng_of("second")),
        Receiver(simulation.node("receiver"), history, uids, rng_of("receiver"), QUEUES),
    ]
    shared = Receiver(actors[1].node, history, uids, rng_of("shared"), QUEUES[:1])
    broker.start()
    for actor in actors:
        actor.node.spawn(actor.run)
    if rng.random() < 0.5:
        shared.node.spawn(shared.run)
    faults = Faults(simulation, broker, actors, history)
    await faults.run(DURATION_S)
    senders = [actor for actor in actors if isinstance(actor, Sender)]
    while sum(sender.confirmed for sender in senders) < SENDS_MIN:
        await trio.sleep(1.0)
    faults.mend()
    if broker.node.life.dead:
        broker.start()
    for actor in (*actors, shared):
        actor.closing = True
    history.healed()
    await _barrier(actors[0], history)
    await _settle_down(broker, history)
    for actor in actors:
        actor.node.kill()
    await _accounts(simulation, broker, history)
    check_history(history)
    return history


async def _barrier(actor: Actor, history: History) -> None:
    """After healing a send has to be confirmed, and every queue to be emptied."""
    deadline = trio.current_time() + HEALING_S
    async with actor.connect() as client:
        for queue in QUEUES:
            uid = actor.uids.next()
            op = history.sent(actor.node.name, queue, uid, duplicate_id=f"d{uid}", barrier=True)
            try:
                with trio.fail_at(deadline):
                    await client.send(queue, body_of(uid), duplicate_id=f"d{uid}")
            except (MeshqError, trio.TooSlowError) as error:
                history.note(f"the barrier failed: {error!r}")
                history.send_failed(op, "unknown")
            else:
                history.send_ok(op)


async def _settle_down(broker: BrokerProcess, history: History) -> None:
    """Let the consumers empty the queues; give up after a while: the checkers will say what is left."""
    for queue in QUEUES:
        history.drains(queue)
    for _ in range(60):
        await trio.sleep(1.0)
        node = broker.broker
        if node is not None and node.state == "active":
            statistics = node.statistics()
            if statistics.ready == 0 and statistics.delivering == 0:
                return


async def _accounts(simulation: Simulation, broker: BrokerProcess, history: History) -> None:
    """What the broker says is left, what it frees, and what its journal says."""
    node = broker.broker
    invariant(node is not None, "the broker ran")
    assert node is not None
    # The killed clients' sessions end after their TTL.
    await trio.sleep(SETTINGS["connection_ttl"] * 2)
    statistics = node.statistics()
    for what in ("sessions", "consumers", "connections", "blocked_sessions"):
        history.left(what, getattr(statistics, what))
    if statistics.ready == 0:
        history.left("memory_used", statistics.memory_used)
    async with node.client() as client:
        for queue in QUEUES:
            counted = await client.queue(queue)
            fields = ("ready", "delivering", "added", "acknowledged", "rejected", "purged")
            history.counted(queue, {name: getattr(counted, name) for name in fields})
    await node.stop()
    broker.node.kill()
    await record_recoveries(simulation, history, "the store", broker.node.disk, _recount)
    live = await _recount(broker.node.start())
    for queue in QUEUES:
        history.recounted(queue, live[queue])


async def _recount(env: Env) -> dict[str, list[tuple[int, int]]]:
    """The messages that the journal holds, by queue: (uid, number)."""
    core = Core(
        CoreSettings(
            name="recount",
            node_id=bytes(16),
            memory_limit_bytes=1 << 30,
            address_settings={},
            token=env.entropy.token,
            chaos=env.chaos,
        ),
        None,
    )
    journal = Journal(DIRECTORY, segment_bytes=64 * 1024, env=env)
    await journal.open()
    Recovery(core).take(journal.recovered(dead=True))
    await journal.aclose()
    live: dict[str, list[tuple[int, int]]] = {queue: [] for queue in QUEUES}
    for queue in core.router.queues.values():
        for view in queue.runs():
            reader = RunView(view.run.content)
            for row, state in enumerate(view.states):
                if not state:
                    live[queue.name].append((uid_of(reader.body(row)) or -1, view.first + row))
    return live


def run_seed(seed: int) -> SimulationResult:
    """One seed: the result has the failure, if there was one."""
    return simulate(
        seed,
        scenario,
        duration_s=DURATION_S,
        limit_s=LIMIT_S,
        network=lambda simulation: MemoryNetwork(simulation.swarm.rng("network")),
    )
