"""The simulated broker and its clients: a minute of faults, then peace, then the accounts.

``run_seed`` is one seed.  Afterwards everything that was promised is checked over the one history: nothing lost,
nothing from nowhere, nothing twice, order kept, counters that balance with a recount from the journal, recovery
that comes to the same state again, nothing left over.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from typing import Final

import attrs
import trio

from meshq.client import Client, connect
from meshq.limits import CONFIRMATION_WINDOW_BYTES
from meshq.testing import SimDisk, SimNode, Simulation, SimulationResult
from meshq.testing.history._history import History, place_of
from qa.checkers.end import check_history
from qa.simulation.accounts import Recount, barrier, settle_accounts, settle_down
from qa.simulation.broker import BrokerNode
from qa.simulation.calm import Calm
from qa.simulation.faults import KINDS, Faults, Machine
from qa.simulation.one_run import run_scenario
from qa.simulation.partner import Partner
from qa.simulation.rare_events import damage_to_indexes, power_after_a_repeat
from qa.simulation.recovery import record_recoveries
from qa.simulation.turns import Turns
from qa.simulation.users import APP, THIEF, USER_SIGHTS, Thief
from qa.simulation.workload import (
    ADDRESSES,
    CLIENT_SETTINGS,
    CONSUMED,
    SOLE,
    URL,
    Actor,
    Dial,
    Scene,
    Sender,
    topic_filter,
)
from qa.simulation.workload_cursor import TAPE, TAPE_PACE, TAPE_SHARE, TAPE_SIGHTS, Replayer, Tape, TapeTraffic
from qa.simulation.workload_odd import ODD, PLACES, OddQueues, OddSettling, OddTraffic, ttl_of
from qa.simulation.workload_receive import PLAIN, Clerk, Queues, Receiver, Settling, UsedQueues
from qa.simulation.workload_sifted import (
    HALF,
    SIFTED_KINDS,
    SIFTED_PACE,
    SIFTED_SHARE,
    SIFTED_SIGHTS,
    SiftedQueues,
    SiftedTraffic,
    furnish_sifted,
    sifted_known,
)
from qa.simulation.workload_transacting import Transacting
from qa.simulation.workload_two_phase import Manager, Preparing, VerdictLog
from qa.simulation.workload_undertaker import UNDERTAKER_SHARE, UNDERTAKER_SIGHTS, Undertaker

#: Simulated seconds of faults, and the least that a seed has to have confirmed.
DURATION_S: Final = 60.0
SENDS_MIN: Final = 300
#: Simulated seconds after which a seed that is not done has failed.
LIMIT_S: Final = 600.0
#: The share of seeds in which recovery is crashed, and at how many of its steps, in each way.
RECOVERY_SHARE: Final = 0.2
RECOVERY_CRASHES: Final = 12
#: The share of machines whose clients keep nothing to be sent again.
WINDOWLESS_SHARE: Final = 0.2


@attrs.frozen
class Outcome:
    """The outcome of a seed that has not failed."""

    history: History
    faults: int
    confirmed: int


class Cast:
    """Return the actors of a run: three clients on their own nodes, some with two parts, some in the broker."""

    def __init__(self, simulation: Simulation, scene: Scene, broker: BrokerNode) -> None:
        rng = simulation.swarm.rng
        self.clerks: list[Clerk] = []
        self.undertaker: Undertaker | None = None
        self.sifting: list[SiftedQueues] = []
        self.tape: Tape | None = None
        users = broker.users

        def dial(node: SimNode, user: str = APP) -> Dial:
            window = math.inf if rng(f"window/{node.name}").random() < WINDOWLESS_SHARE else CONFIRMATION_WINDOW_BYTES

            def dialled() -> Client:
                return connect(
                    URL,
                    env=users.env(node.env, user),
                    client_id=node.name,
                    confirmation_window=window,
                    **users.login(user),
                    **CLIENT_SETTINGS,
                )

            return dialled

        first, second, third = (simulation.node(name) for name in ("sender", "second", "receiver"))
        self.sender = Sender(scene, "sender", rng("actor/sender"), dial(first))
        others: list[Actor] = [Sender(scene, "second", rng("actor/second"), dial(second))]
        if rng("cast/shared").random() < 0.5:
            others.append(Receiver(scene, "sharer", rng("actor/sharer"), dial(second), Queues(("shared",))))
        receiver = self._receiver(scene, rng, dial(second), dial(third), others)
        news = Receiver(scene, "reader", rng("actor/reader"), dial(third), Queues(("news-b",)))
        parts: list[Actor] = [receiver]
        if rng("cast/odd").random() < 0.5:
            scene.history.expected.moves(ODD)
            scene.history.expected.ttl_of = ttl_of
            others.append(Sender(scene, "odd", rng("actor/odd"), dial(second), OddTraffic()))
            reading = rng("actor/odd-reader")
            parts.append(
                Receiver(scene, "odd-reader", reading, dial(third), OddQueues(), settling=OddSettling(reading))
            )
        if rng("cast/sifted").random() < SIFTED_SHARE:
            self._sift(scene, rng, dial(second), dial(third), others, parts)
        if rng("cast/tape").random() < TAPE_SHARE:
            self._record(scene, rng, dial(second), dial(third), others, parts)
        if rng("cast/clerk").random() < 0.5:
            filing = rng("actor/clerk")
            clerk = Clerk(scene, "clerk", filing, dial(second), UsedQueues(scene, "clerk", filing))
            self.clerks.append(clerk)
            others.append(clerk)
        if rng("cast/hosted").random() < 0.5:
            inside = Sender(scene, "inside", rng("actor/inside"), broker.client)
            news = Receiver(scene, "reader", rng("actor/reader"), broker.client, Queues(("news-b",)))
            inside.expendable = news.expendable = True
            broker.hosted += [inside, news]
        else:
            parts.append(news)
        self.machines = [Machine(first, [self.sender]), Machine(second, others), Machine(third, parts)]
        self.thief: Thief | None = None
        if users.on:
            outside = simulation.node("thief")
            self.thief = Thief(scene, "thief", rng("actor/thief"), dial(outside, THIEF))
            self.machines.append(Machine(outside, [self.thief]))

    def _receiver(
        self,
        scene: Scene,
        rng: Callable[[str], random.Random],
        deciding: Dial,
        reading: Dial,
        others: list[Actor],
    ) -> Receiver:
        """Return the receiver of most queues, plain or in transactions, and the manager of prepared ones."""
        name, receiving = "receiver", rng("actor/receiver")
        transacting = Transacting(scene, name, receiving)
        settling: Settling = transacting if rng("cast/transacting").random() < 0.5 else PLAIN
        if rng("cast/preparing").random() < 0.3:
            verdict_log = VerdictLog(scene.history)
            others.append(Manager(scene, "manager", rng("actor/manager"), deciding, verdict_log))
            if rng("cast/undertaker").random() < UNDERTAKER_SHARE:
                # Its queues are not made again by somebody who comes too late, as those of the clerk.
                deleting = rng("actor/undertaker")
                self.undertaker = Undertaker(scene, "clerk.end", deleting, verdict_log)
                clerk = Clerk(scene, "clerk.end", deleting, deciding, self.undertaker)
                self.clerks.append(clerk)
                others.append(clerk)
            settling = Preparing(scene, receiving, transacting, verdict_log)
        return Receiver(scene, name, receiving, reading, Queues(("shared", "solo", "news-a")), settling=settling)

    def _sift(
        self,
        scene: Scene,
        rng: Callable[[str], random.Random],
        sending: Dial,
        reading: Dial,
        others: list[Actor],
        parts: list[Actor],
    ) -> None:
        """Return the sender to a topic with filters, and its two receivers."""
        sifted_known(scene.history)
        sender = Sender(scene, "sifted", rng("actor/sifted"), sending, SiftedTraffic())
        sender.pace = SIFTED_PACE
        others.append(sender)
        settling = Settling(SIFTED_KINDS)
        for name, dial, only, actors in (
            ("sifted-reader", reading, None, parts),
            ("sifted-half", sending, HALF, others),
        ):
            queues = SiftedQueues(scene.history, name, only=only)
            self.sifting.append(queues)
            # The groups are left to the other receiver in the end.
            leaves = only is not None
            actors.append(Receiver(scene, name, rng(f"actor/{name}"), dial, queues, settling=settling, leaves=leaves))

    def _record(
        self,
        scene: Scene,
        rng: Callable[[str], random.Random],
        first: Dial,
        second: Dial,
        others: list[Actor],
        parts: list[Actor],
    ) -> None:
        """Return the sender to a queue that a cursor has, and two replayers that contend for the cursor."""
        tape = self.tape = Tape(scene.history)
        # What waits first, or is urgent, is not numbered in the order of sending.
        scene.history.expected.moves(TAPE)
        sender = Sender(scene, "taping", rng("actor/taping"), first, TapeTraffic(scene.history))
        sender.pace = TAPE_PACE
        others += [sender, Replayer(scene, "replayer", rng("actor/replayer"), first, tape)]
        parts.append(Replayer(scene, "rival", rng("actor/rival"), second, tape))

    def met(self) -> dict[str, int]:
        """Count the sights of users, of queues deleted too early, of filters, and of cursors."""
        users = dict.fromkeys(USER_SIGHTS, 0) if self.thief is None else {**self.thief.met, "users": 1}
        kept = dict.fromkeys(UNDERTAKER_SIGHTS, 0) if self.undertaker is None else self.undertaker.met
        sifted = {sight: sum(one.met[sight] for one in self.sifting) for sight in SIFTED_SIGHTS}
        taped = dict.fromkeys(TAPE_SIGHTS, 0)
        if self.tape is not None:
            taped = {sight: self.tape.met[sight] for sight in TAPE_SIGHTS}
        return {**users, **kept, **sifted, **taped}


async def _confirm_enough(scene: Scene, broker: BrokerNode) -> None:
    """Wait until enough sends are confirmed; a partner that fails ends the broker also after the last fault."""
    while scene.confirmed < SENDS_MIN:
        if broker.node.life.dead:
            await broker.serving()
        await trio.sleep(1.0)


async def scenario(
    simulation: Simulation, *, turns: bool = False, replicated: bool = False, kinds: tuple[str, ...] = KINDS
) -> Outcome:
    """A seed's minute, and its accounts.

    ``turns``: the broker has to step back from time to time.  ``replicated``: the broker takes turns, too, and its
    records have to be durable at a partner.  ``kinds``: the faults that happen.

    Checkpoint: always.  Cancellation: the simulation ends.
    Raises: HistoryError for a promise that was broken.
    """
    turns = turns or replicated
    history = History(trio.current_time)
    scene = Scene(history)
    partner = Partner(history, simulation.swarm) if replicated else None
    broker = BrokerNode(simulation.node("broker"), history, simulation.swarm, turns=turns, partner=partner)
    history.expected.alone((*SOLE, *(place_of(ODD, place) for place in PLACES.values())))
    crashes = RECOVERY_CRASHES if simulation.swarm.rng("trials").random() < RECOVERY_SHARE else 0
    broker.start()
    await broker.started()
    async with broker.client() as client:
        for queue in ADDRESSES["news"]:
            await client.create_queue(queue, address="news", routing="multicast", filter=topic_filter(simulation.swarm))
    await Calm(scene, broker, simulation.swarm.rng("calm")).run()
    broker.node.kill()
    if partner is not None:
        partner.make_trouble()
    cast = Cast(simulation, scene, broker)
    broker.start()
    if cast.sifting:
        await broker.started()
        async with broker.client() as client:
            await furnish_sifted(client)
    faults = Faults(simulation, scene, broker, cast.machines)
    faults.kinds = kinds
    for machine in cast.machines:
        machine.start()
    if turns:
        await _with_turns(Turns(broker, simulation.swarm), faults)
    else:
        await faults.run(DURATION_S)
    await _confirm_enough(scene, broker)
    await power_after_a_repeat(scene, broker, simulation.swarm)
    await damage_to_indexes(broker, simulation.swarm)
    await broker.serving()
    crashed: SimDisk | None = None
    if crashes:
        # A last power loss in the middle of work: what it leaves is recovered in every way.
        broker.node.power_off()
        crashed = broker.node.disk.copy()
        await broker.serving()
    # Of the failpoints the one that breaks connections is a fault.
    simulation.swarm.force("chaos.broker.drop_connection", False)
    scene.closing = True
    if partner is not None:
        partner.make_peace()
    history.healed()
    await barrier(cast.sender)
    await settle_down(scene, [broker], cast.machines, (*CONSUMED, *history.expected.odd))
    for machine in cast.machines:
        machine.node.kill()
    broker.dismiss()
    await settle_accounts(simulation, scene, broker, cast.clerks)
    if crashed is not None:
        await record_recoveries(simulation, history, "the store after a crash", crashed, Recount(), crashes=crashes)
    for sight, number in cast.met().items():
        simulation.swarm.count(f"seen.{sight}", number)
    check_history(history)
    return Outcome(history, faults.happened, scene.confirmed)


async def _with_turns(turns: Turns, faults: Faults) -> None:
    """Break things while the broker takes turns.  A clock that is set back would hold delays over a turn."""
    faults.kinds = tuple(kind for kind in faults.kinds if kind != "clock")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        await faults.run(DURATION_S)
        nursery.cancel_scope.cancel()
    await turns.finish()


def run_seed(
    seed: int, *, turns: bool = False, replicated: bool = False, kinds: tuple[str, ...] = KINDS
) -> SimulationResult:
    """A seed: the result has the failure, if there was one.

    ``turns``: the broker takes turns as the active one.  ``replicated``: with a partner, besides.  ``kinds``: the
    faults that happen.
    """
    made = partial(scenario, turns=turns, replicated=replicated, kinds=kinds)
    return run_scenario(seed, made, duration_s=DURATION_S, limit_s=LIMIT_S)
