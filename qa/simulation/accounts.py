"""The accounts after the faults: all works again, no message is left, and the counts agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs
import trio

from meshq.abc import Env
from meshq.broker import BackupTold, Core, CoreSettings, EndTold
from meshq.broker.bodies._body import Body
from meshq.broker.queue._message_counts import REMOVED
from meshq.broker.queue._run import GONE, QueueRun
from meshq.errors import MeshqError, RefusedError, invariant
from meshq.store import Journal, JournalRecord, LargeBodyFiles
from meshq.store.directory._store_lock import layout_of
from meshq.store.formats._keyring_format import Keyring
from meshq.store.formats._large_body_format import block_count
from meshq.testing import Simulation
from meshq.testing.history._history import body_of, place_of, uid_of
from meshq.wire import LinkOpening, RunView
from qa.simulation.broker import DIRECTORY, SEGMENT_BYTES, BrokerNode
from qa.simulation.faults import Machine
from qa.simulation.recovery import record_recoveries
from qa.simulation.workload import ADDRESSES, CONSUMED, SETTINGS, Actor, Scene
from qa.simulation.workload_odd import ODD, PLACES
from qa.simulation.workload_receive import Clerk
from qa.simulation.workload_sifted import SIFTED, SIFTED_PLACES

#: Seconds after healing in which everything has to work again.
HEALING_S: Final = 10.0
#: Seconds in which what was under way has come to an end, and the queues are empty.
DRAINING_S: Final = 60
#: How the names of store-and-forward queues begin.
FORWARDING: Final = "$meshq.cluster."
#: How the names of queues begin that hold the messages of stages.
STAGED: Final = "$meshq.stage."
#: The counters of a queue that are compared with the rest.
COUNTERS: Final = ("ready", "delivering", "delayed", "scheduled", "added", "acknowledged", *REMOVED)


async def barrier(actor: Actor) -> None:
    """After healing a send to each address has to be confirmed, by the node that the actor is dialled at.

    Checkpoint: always.  Cancellation: the simulation ends.
    """
    history, deadline = actor.history, trio.current_time() + HEALING_S
    async with actor.dial() as client:
        for address, queues in ADDRESSES.items():
            uid = actor.scene.uid()
            op = history.sent(
                place_of("barrier", actor.node), queues, uid, duplicate_id=f"d{uid}", barrier=True, node=actor.node
            )
            try:
                with trio.fail_at(deadline):
                    await client.send(address, body_of(uid), duplicate_id=f"d{uid}")
            except (MeshqError, trio.TooSlowError) as error:
                history.note(f"the barrier failed: {error!r}")
                history.send_failed(op, "unknown")
            else:
                history.send_ok(op)


def known_as(queue: str) -> str:
    """The place by which the history knows a queue."""
    if queue in SIFTED_PLACES:
        return place_of(SIFTED, SIFTED_PLACES[queue])
    return place_of(ODD, PLACES[queue]) if queue in PLACES else queue


async def settle_down(
    scene: Scene, brokers: Sequence[BrokerNode], machines: list[Machine], drained: Sequence[str] = CONSUMED
) -> None:
    """Wait until calls under way have ended and the queues are empty; the checkers find the messages that are left.

    Checkpoint: always.  Cancellation: the simulation ends.
    """
    history = scene.history
    for queue in drained:
        history.expected.drains(queue)
    actors = [actor for machine in machines for actor in machine.actors]
    actors += [actor for broker in brokers for actor in broker.hosted]
    waited = 0
    while waited < DRAINING_S and (_busy(actors) or any(_undrained(broker) for broker in brokers)):
        await trio.sleep(1.0)
        waited += 1
    history.final.left("actors that do not come to their end", _busy(actors))


def _busy(actors: list[Actor]) -> int:
    return sum(not actor.ended and actor.ends for actor in actors)


def _undrained(broker: BrokerNode) -> int:
    if broker.core is None:
        return 1
    queues = broker.core.router.queues
    names = [name for name in queues if broker.drained(name)]
    return sum(
        queues[name].counts.ready
        + queues[name].counts.unacked
        + queues[name].counts.delayed
        + len(queues[name].scheduled)
        for name in names
    )


async def settle_accounts(simulation: Simulation, scene: Scene, broker: BrokerNode, clerks: list[Clerk]) -> None:
    """Enter the messages that the broker and its journal still have, and the memory that the broker frees.

    All clients are dead.

    Checkpoint: always.  Cancellation: the simulation ends.
    """
    history, node = scene.history, broker.broker
    # The sessions of the killed end after their TTL.
    await trio.sleep(SETTINGS["connection_ttl"] * 2)
    invariant(node is not None and broker.active, "the broker runs")
    assert node is not None
    leftovers(broker)
    async with node.client() as client:
        for queue in await client.queues():
            counted = await client.queue(queue)
            history.final.counted(known_as(queue), {name: getattr(counted, name) for name in COUNTERS})
    await node.stop()
    broker.left("files open after a stop", broker.node.open_files)
    broker.node.kill()
    await record_recoveries(simulation, history, "the store", broker.node.disk, Recount(), crashes=0)
    state: Any = history.final.recoveries[0].state
    for queue, (live, _) in state["queues"].items():
        history.final.recounted(known_as(queue), live)
    for clerk in clerks:
        for queue, stands in clerk.care.standing.items():
            if stands is not (queue in state["queues"]):
                history.final.left(f"queue {queue} that should {'' if stands else 'not '}exist", 1)


def leftovers(broker: BrokerNode, links: int = 0) -> None:
    """Enter the leftovers of a broker whose clients have gone; ``links`` other nodes are linked to it."""
    assert broker.broker is not None
    statistics = broker.broker.statistics()
    expected = {"sessions": links, "consumers": links, "connections": links, "blocked_sessions": 0}
    for what, number in expected.items():
        broker.left(what, getattr(statistics, what) - number)
    core = broker.serving_core
    views = [view for queue in core.router.queues.values() for view in (*queue.runs(), *queue.scheduled)]
    runs = {id(run): run for run in (view.run.origin or view.run for view in views)}
    held = sum(run.size_bytes for run in runs.values())
    broker.left("bytes that nothing holds", statistics.memory_used - held)
    bodies = {run.body.body_id for run in runs.values() if run.body is not None}
    files = [path for path in broker.node.disk.files() if "/large/" in path and not path.endswith("lock")]
    broker.left("large bodies that nobody needs", len(files) - len(bodies))
    if not links:
        broker.left("bytes promised to nobody", core.memory.reserved_bytes)
    broker.left("prepared transactions", len(core.transactions.two_phase))
    broker.left("entries that wait for a sync", core.release_queue.waiting)
    broker.look()


def _read(files: LargeBodyFiles, body: Body) -> bytes:
    """A large body, from its file."""
    blocks = range(block_count(body.size_bytes))
    return b"".join([files.read(body.body_id, body.size_bytes, number) for number in blocks])


class _NoNode:
    """Stands around a core that only recovers: there is nothing to warn of, and nothing is left for later."""

    resumes = False

    def resume_soon(self) -> None:
        """Nothing waits."""
        invariant(False, "a core that only recovers leaves nothing for later")

    def warn(self, event: str, text: str) -> None:
        """Nothing that a core reads is worth a warning."""
        invariant(False, f"a core that only recovers does not warn: {event}, {text}")

    def meet_stranger(self, opening: LinkOpening, error: MeshqError) -> None:
        """No link is served."""
        invariant(False, f"a core that only recovers meets nobody: {error}")

    def describe(self) -> dict[str, Any]:
        """No operator asks."""
        return {}

    def role(self) -> dict[str, Any]:
        """No operator asks."""
        return {}

    def hosted_backups(self, node_id: str) -> dict[str, Any]:
        """No node asks."""
        return {"backups": 0, "max_backups": 0, "mine": "", "hosted": []}

    def end_backup(self, name: str, told: EndTold, *, force: bool) -> None:
        raise NotImplementedError

    def host_backup(self, node_id: str, request: bytes, told: BackupTold, *, ends: bool, clears: bool) -> None:
        """No node asks."""
        told("", "the node runs no backups")

    def order_role(self, *, back: bool, force: bool) -> int:
        """No operator orders."""
        raise RefusedError("a core that only recovers has no successor")


class _NoPages:
    """Stands for the disk of a core that keeps everything in memory."""

    def wake(self) -> None:
        """Everything stays."""

    def forget(self, spill: Any) -> None:
        """Nothing is in a file."""


def _targets(view: QueueRun) -> tuple[int | str, ...]:
    """Return the remote queues of waiting messages, by number or by name; an entry has none."""
    options = view.run.options
    if options is None or options.there is None:
        return view.remote
    return () if options.entry else (options.there.name,)


def _core_of(records: list[JournalRecord], env: Env) -> tuple[Core, dict[bytes, int]]:
    """Return a core that has recovered from these records, and the large bodies that it needs."""
    core = Core(
        CoreSettings(
            name="recount",
            node_id=bytes(16),
            memory_limit_bytes=1 << 30,
            address_settings={},
            token=env.entropy.token,
            failpoint=env.failpoint,
            now_ms=env.wall.now_ms,
            elapsed_ms=lambda: 0,
            host=_NoNode(),
            page_requests=_NoPages(),
        ),
        None,
    )
    recovery = core.recovery()
    recovery.take(records)
    return core, recovery.bodies


@attrs.define(eq=False)
class Recount:
    """Recounts one store, from one copy of its disk after the other.

    Each copy is opened and read as a broker does.  Nearly all copies give the very same records, and a core knows
    nothing else: two cores are made of them, so that these are compared, too, and what is in the second of them is told
    of each later copy whose records are equal.
    """

    _records: list[JournalRecord] = attrs.field(factory=list, init=False)
    _made: tuple[Core, dict[bytes, int]] | None = attrs.field(default=None, init=False)
    #: Cores that were made of the same records.
    _equal: int = attrs.field(default=0, init=False)

    async def __call__(self, env: Env) -> dict[str, Any]:
        """Return the contents of a journal, as ``recount`` does.  Checkpoint: always.  Cancellation: it stays open."""
        # Where its parts are, the store knows itself.
        places = layout_of(env.disk, DIRECTORY, Keyring()).directories
        journal = Journal(DIRECTORY, segment_bytes=SEGMENT_BYTES, env=env, directories=places)
        await journal.open()
        core, bodies = self._core(list(journal.recovered(deleted=True)), env)
        files = journal.large_files()
        files.prepare()
        files.sweep(bodies)
        await journal.aclose()
        return _contents(core, journal, files)

    def _core(self, records: list[JournalRecord], env: Env) -> tuple[Core, dict[bytes, int]]:
        if self._made is None or records != self._records:
            self._equal = 0
        if self._made is None or self._equal < 2:
            self._made = _core_of(records, env)
            self._records = records
            self._equal += 1
        return self._made


async def recount(env: Env) -> dict[str, Any]:
    """Return the contents of a journal: by queue (uid, number) and the highest number; high watermarks, ids.

    Of store-and-forward queues the queue's number, and each message with the numbers, or the name, of the peer's queues
    that it is for.  ``decided``: the messages of committed batches that stand in stages still, with their addresses.

    Checkpoint: always.  Cancellation: it stays open.
    """
    return await Recount()(env)


def _contents(core: Core, journal: Journal, files: LargeBodyFiles) -> dict[str, Any]:
    queues: dict[str, tuple[list[tuple[int, int]], int]] = {}
    decided: list[tuple[str, int]] = []
    ledger = core.definitions.stages.ledger
    placing = {stage.facts.number for sink in ledger.sinks for stage in ledger.placing(sink)}
    forwarding: dict[str, tuple[int, list[tuple[int, int, tuple[int | str, ...]]]]] = {}
    for queue in core.router.queues.values():
        live: list[tuple[int, int, tuple[int | str, ...]]] = []
        for view in (*queue.runs(), *queue.scheduled):
            reader = RunView(view.run.content)
            for row, state in enumerate(view.states):
                if state != GONE:
                    number = view.first + row if view.first else 0
                    body = reader.body(row) if view.run.body is None else _read(files, view.run.body)
                    live.append((uid_of(body) or -1, number, _targets(view)))
                    if queue.number in placing:
                        decided.append((view.run.address, uid_of(body) or -1))
        if queue.name.startswith(FORWARDING):
            forwarding[queue.name] = (queue.number, live)
        else:
            queues[queue.name] = ([(uid, number) for uid, number, _ in live], queue.last)
    ids = {name: len(address.duplicates) for name, address in core.router.addresses.items()}
    return {
        "store": journal.journal_id.hex(),
        "queues": queues,
        "forwarding": forwarding,
        "decided": decided,
        "numbers": {queue.name: queue.number for queue in core.router.queues.values()},
        "links": {link.hex(): number for link, number in core.ingress.links.items()},
        "ids": ids,
        "producers": sorted(core.ingress.producers.checkpoint()),
        "prepared": [(one.xid, one.transaction.sent, one.transaction.acked) for one in core.transactions.two_phase],
    }
