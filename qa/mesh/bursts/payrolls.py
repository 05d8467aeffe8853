"""A sink of a node of a simulated mesh: a payer writes stages, and commits or abandons batches, over kills and losses.

Each committed batch has to come once, to the consumers of two nodes, and no message of another stage ever does: of
attempts that were given up, of batches that were abandoned, left alone, or have expired.
"""

from __future__ import annotations

import random
from typing import Final

import attrs
import trio

from meshq.client import Client, Transaction
from meshq.errors import MeshqError, NotFoundError
from meshq.message import Message
from meshq.testing import Swarm
from meshq.testing.history._history import History, body_of
from qa.mesh.bursts.payslips import SLIP_SIGHTS, SLIPS, Payslips
from qa.mesh.node import MeshNode
from qa.simulation.accounts import STAGED
from qa.simulation.workload import Actor, Dial, Scene
from qa.simulation.workload_receive import Queues, Receiver

#: The queue of the messages, and the sink.
PAYROLL: Final = "payroll"
SINK: Final = "wages"
#: Seconds for which a stage waits: in some seeds less than a client is away.
TIMEOUTS_S: Final = (2.0, 60.0)
#: Seconds that some payers take before they commit: in some seeds the stages have expired by then.
SLOW_S: Final = 4.0
#: Bodies of some messages: a stage of a few of these is paged when the node is short of memory.
BODY_BYTES: Final = 3_000
#: Seconds in which nothing is left of the stages when nothing fails any more.
SETTLED_S: Final = 60.0
PAUSE_S: Final = 0.2
#: What the payers have done and come upon; ``payrolls``: there are some; ``payroll_survived``: a batch was decided in
#: another life of the node than its stages were prepared in.
PAYROLL_SIGHTS: Final = (
    "payrolls",
    *("payroll_committed", "payroll_already", "payroll_abandoned", "payroll_left"),
    *("payroll_lost", "payroll_expired", "payroll_survived"),
    *("payslips", *SLIP_SIGHTS),
)
#: The ways of a batch, and how often each is taken.
WAYS: Final = ("commit", "abandon", "leave")
SHARES: Final = (8, 2, 1)


@attrs.define(eq=False)
class PayBatch:
    """A batch that is written, or waits for the answer to its decision."""

    number: int
    way: str
    partitions: int
    #: How often the node had been started when its first stage was prepared.
    restarts: int = 0
    #: Whether it takes the place of what is in the queue of the payslips, and its messages for that.
    replaces: bool = False
    slips: dict[int, None] = attrs.field(factory=dict)
    #: The stages that count, by partition, and the sends of these.
    stages: dict[int, int] = attrs.field(factory=dict)
    ops: list[int] = attrs.field(factory=list)
    attempts: int = 0
    #: It may be committed: whether it is was not heard.
    asked: bool = False


@attrs.define(eq=False)
class Payroll:
    """The knowledge of a payer over all its lives, which a program would keep on a disk."""

    batch: PayBatch | None = None
    #: The last number of a batch, and the last one that was committed.
    number: int = 0
    committed: int = -1
    met: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(PAYROLL_SIGHTS, 0))
    #: The queue that some batches replace; None: none does.
    slips: Payslips | None = None


class Payer(Actor):
    """Writes the stages of one batch after the other, and decides about each until it has the answer."""

    def __init__(
        self, scene: Scene, name: str, rng: random.Random, dial: Dial, payroll: Payroll, *, timeout_s: float
    ) -> None:
        super().__init__(scene, name, rng, dial)
        self._payroll = payroll
        self._timeout_s = timeout_s

    @property
    def finished(self) -> bool:
        """Whether the scene is closing and no batch waits for an answer."""
        return self.scene.closing and self._payroll.batch is None

    async def use(self, client: Client) -> None:
        """Some batches.  Checkpoint: always.  Cancellation: ends it.  Raises: nothing."""
        for _ in range(self.rng.randrange(1, 6)):
            if self.finished:
                return
            try:
                await self._pay(client)
                if self._payroll.batch is None and self._payroll.slips is not None:
                    await self._payroll.slips.use(client, self.scene)
            except MeshqError as error:
                self.history.note(f"{self.name}: {error!r}")
            await trio.sleep(self.rng.expovariate(0.5))

    async def _pay(self, client: Client) -> None:
        payroll = self._payroll
        if payroll.batch is None:
            payroll.number += self.rng.choice((1, 1, 3))
            way = self.rng.choices(WAYS, SHARES)[0]
            payroll.batch = PayBatch(payroll.number, way, self.rng.choice((1, 2, 2)), self.history.restarts)
            payroll.batch.replaces = payroll.slips is not None and payroll.slips.replaces()
        batch = payroll.batch
        while len(batch.stages) < batch.partitions:
            await self._write(client, batch, len(batch.stages))
        if batch.way == "commit":
            if not batch.asked and self.rng.random() < 0.1:
                await trio.sleep(SLOW_S)
            await self._commit(client, batch)
        elif batch.way == "abandon":
            await client.abandon_batch(SINK, batch.number)
            self._never(batch, "payroll_abandoned")
        else:
            self._never(batch, "payroll_left")

    async def _write(self, client: Client, batch: PayBatch, partition: int) -> None:
        """Write one attempt of a part; unless it is prepared, none of its messages ever comes."""
        batch.attempts += 1
        ops: list[int] = []
        slips: dict[int, None] = {}
        prepared = False
        try:
            name = {"partition": partition, "attempt": batch.attempts, "timeout": self._timeout_s}
            async with client.stage(SINK, batch.number, **name) as stage:  # type: ignore[arg-type]
                for _ in range(self.rng.randrange(1, 5)):
                    await self._send(stage, f"{self.name}/{batch.number}/{batch.attempts}", ops)
                if batch.replaces and self._payroll.slips is not None:
                    slips = await self._payroll.slips.write(stage, self.scene)
                if self.rng.random() < 0.1:
                    await stage.rollback()
            prepared = stage.state == "prepared"
            assert stage.stage_id is not None or not prepared
        except MeshqError:
            self._payroll.met["payroll_lost"] += 1
            raise
        finally:
            if not prepared:
                # Its number is named by no commit.
                for op in ops:
                    self.history.send_failed(op, "not_done")
        if prepared and stage.stage_id is not None:
            batch.stages[partition] = stage.stage_id
            batch.ops += ops
            batch.slips |= slips

    async def _send(self, stage: Transaction, producer: str, ops: list[int]) -> None:
        uid = self.scene.uid()
        durable, size = self.rng.random() < 0.8, self.rng.choice((0, 0, BODY_BYTES))
        duplicate_id = f"d{uid}" if self.rng.random() < 0.5 else None
        about = {"duplicate_id": duplicate_id, "durable": durable, "node": self.node}
        ops.append(self.history.sent(self.name, PAYROLL, uid, producer=producer, **about))  # type: ignore[arg-type]
        await stage.send(PAYROLL, Message(body_of(uid, size), duplicate_id=duplicate_id, durable=durable))

    async def _commit(self, client: Client, batch: PayBatch) -> None:
        payroll, numbers = self._payroll, list(batch.stages.values())
        asked, batch.asked = batch.asked, True
        purge = SLIPS if batch.replaces else None
        try:
            done = await client.commit_batch(SINK, batch.number, numbers, purge=purge)
        except NotFoundError:
            # Else it would be known as committed.
            self._never(batch, "payroll_expired")
            return
        payroll.met["payroll_already"] += done.already
        if done.already and not asked:
            self.history.final.left("batches that are said to be committed before", 1)
        for op in batch.ops:
            self.history.send_ok(op)
        payroll.committed, payroll.batch = batch.number, None
        if batch.replaces and payroll.slips is not None:
            payroll.slips.replaced(batch.slips, (SINK, batch.number, numbers))
        payroll.met["payroll_committed"] += 1
        payroll.met["payroll_survived"] += self.history.restarts > batch.restarts
        self.scene.confirmed += len(batch.ops)
        if self.rng.random() < 0.2:
            again = await client.commit_batch(SINK, batch.number, numbers, purge=purge)
            payroll.met["payroll_already"] += 1
            self.history.final.left("batches that are committed twice", int(not again.already))

    def _never(self, batch: PayBatch, sight: str) -> None:
        """Note that no message of a batch ever comes."""
        for op in batch.ops:
            self.history.send_failed(op, "not_done")
        self._payroll.batch = None
        self._payroll.met[sight] += 1


class MeshPayrolls:
    """The sink of one seed: the node that has it, empty: there is none; and another node with a consumer."""

    def __init__(self, swarm: Swarm, names: tuple[str, ...], *, drained: bool) -> None:
        """``drained``: one of the nodes hands its messages over, and may have no sink."""
        self._swarm = swarm
        rng = swarm.rng("mesh/payrolls")
        place, self._other = rng.sample(names, 2)
        self.place = place if swarm.on("mesh.payrolls") and not drained else ""
        self._timeout_s = rng.choice(TIMEOUTS_S)
        self.queues: list[str] = [PAYROLL] if self.place else []
        slips = Payslips(swarm.rng("mesh/payslips")) if self.place and swarm.on("mesh.payslips") else None
        self._payroll = Payroll(slips=slips)

    def known(self, history: History) -> None:
        """Tell the history the queue whose messages are numbered when their batch is placed."""
        history.expected.moves(*self.queues)

    def actors(self, scene: Scene, node: str, dial: Dial) -> list[Actor]:
        """Return the payer and the receivers of a node."""
        if not self.place or node not in (self.place, self._other):
            return []
        rng, name = self._swarm.rng, f"payroll-receiver-{node}"
        actors: list[Actor] = [Receiver(scene, name, rng(f"actor/{name}"), dial, Queues((PAYROLL,), node))]
        if node == self.place:
            name = f"payer-{node}"
            payer = Payer(scene, name, rng(f"actor/{name}"), dial, self._payroll, timeout_s=self._timeout_s)
            actors.append(payer)
        return actors

    async def judge(self, nodes: list[MeshNode]) -> None:
        """See that nothing is left of any stage, and that the ledger has the last batch; the clients are dead.

        Checkpoint: always.  Cancellation: the simulation ends.
        """
        met = self._payroll.met
        met["payrolls"] = int(bool(self.place))
        slips = self._payroll.slips
        met["payslips"] = int(slips is not None)
        met.update(slips.met if slips is not None else {})
        for sight in PAYROLL_SIGHTS:
            self._swarm.count(f"seen.{sight}", met[sight])
        here = next((node for node in nodes if node.place == self.place), None)
        if here is None:
            # There is none, or it is the node that has gone for good.
            return
        async with here.client() as client:
            sinks = {sink.sink: sink.batch for sink in await client.sinks()}
            here.left("ledgers that have another last batch", int(sinks.get(SINK, -1) != self._payroll.committed))
            with trio.move_on_after(SETTLED_S):
                for batch in range(self._payroll.number + 1):
                    await client.abandon_batch(SINK, batch)
                while await client.stages():  # noqa: ASYNC110 - a test polls
                    await trio.sleep(PAUSE_S)
            here.left("stages", len(await client.stages()))
            if slips is not None:
                await slips.settle(client, here.history)
        core = here.serving_core
        here.left("queues of stages", sum(name.startswith(STAGED) for name in core.router.queues))
