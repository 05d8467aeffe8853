"""What a node that serves does about a replica that was in sync and is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import attrs
import trio
import trio.testing

from meshq.abc import NodeControl, StepBack
from meshq.concurrency import ChangeSignal
from meshq.ha.replication._acting_side import ActingSide
from meshq.ha.replication._feeder import Feeder
from meshq.ha.replication._own_pauses import OwnPauses
from meshq.ha.replication._reach import Reach
from meshq.ha.replication._replicator_machine import ReplicationBounds
from meshq.ha.replication._standing_format import Standing
from meshq.ha.replication._term import ReplicationTerm
from meshq.ha.replication.meeting._asking import Answer, Asker
from meshq.ha.replication.meeting._standpoints import CLAIMED
from meshq.logs import Warnings
from meshq.wire import Log, Replicate

OWN, THEIRS, NODE = b"o" * 16, b"t" * 16, b"n" * 16


class Answers:
    """Answers questions in turn; the last one again and again."""

    def __init__(self, *answers: Answer) -> None:
        self._answers: Iterator[Answer] = iter(answers)
        self._last = Answer()

    async def ask(
        self, url: str, *, ends: bytes = b"", patience_s: float = 0.0, name: str = "", node_id: bytes = b""
    ) -> Answer:
        self._last = next(self._answers, self._last)
        await trio.sleep(0.1 if self._last.log is not None or self._last.gone else patience_s)
        return self._last


def says(epoch: int, kind: str = "waiting") -> Answer:
    """Make an answer of the replica."""
    return Answer(log=Log(kind=kind, name="b", epoch=epoch, node_id=NODE, instance=THEIRS, flags=0), lives=True)


async def settled(*answers: Answer, pause_s: float = 0.0, votes: Any = None) -> tuple[list[str], list[str]]:
    """End the link to a replica in sync, which answers so; return the orders, and the reasons for a drop."""
    orders, drops = list[str](), list[str]()
    pauses = OwnPauses(trio.current_time() - pause_s, 0.1)
    reach: Any = type("R", (), {"call_timeout": 2.0, "patience": 4.0, "pause_s_max": 2.0})()
    control: Any = type("C", (), {"instance": OWN, "name": "a", "board": None})()
    policy: Any = type("P", (), {"primary": True, "initial_replication_sync_timeout": 30})()

    def order(about: StepBack) -> None:
        orders.append(about.reason)
        term.order = about

    async with trio.open_nursery() as nursery:
        side = ActingSide(
            policy,
            cast("NodeControl", control),
            cast("Reach", reach),
            nursery=nursery,
            changed=ChangeSignal(),
            order=order,
            asker=cast("Asker", Answers(*answers)),
            give_in=lambda wanted: None,
            pauses=pauses,
            warnings=Warnings("ha", trio.current_time),
        )
        term = side.term = ReplicationTerm(1, ReplicationBounds(sync_s=30, slow_s=5))
        term.start = cast("Any", type("S", (), {"node_id": NODE})())
        wanted = Replicate(instance=THEIRS, node_name="b", place="tcp://b:1")
        side.feeder = feeder = cast("Feeder", type("F", (), {"wanted": wanted})())
        side._drop = drops.append  # type: ignore[method-assign]
        nursery.start_soon(running, pauses)
        await (side._settle_by_votes(votes, feeder, term, "link") if votes else side._settle(feeder, term, "link"))
        nursery.cancel_scope.cancel()
    return orders, drops


class Wins:
    """Votes that are won."""

    wait_s = 5.0

    def __init__(self, *, refusals: int = 0) -> None:
        self.held, self.refusals, self.say_held = list[str](), refusals, len
        self.left = list[int]()

    async def hold(self, question: str) -> Any:
        self.held += [question]
        return type("Poll", (), {"granted": True})()

    async def leave_out(self, only: int) -> bool:
        self.left.append(only)
        self.refusals -= 1
        return self.refusals < 0


async def test_a_word_of_another_life_is_no_word_of_the_replica_where_others_vote() -> None:
    other = Answer(log=attrs.evolve(cast("Log", says(1).log), instance=bytes(16)), lives=True)
    for answer, held in ((says(1), []), (other, ["stay"])):
        votes = Wins()
        assert (await settled(answer, votes=votes), votes.held) == (([], ["link"]), held)
    # The disk refuses it twice: confirms wait, and no second vote is held.
    before, votes = trio.current_time(), Wins(refusals=2)
    assert (await settled(other, votes=votes), votes.held) == (([], ["link"]), ["stay"])
    assert trio.current_time() - before >= 2 * Wins.wait_s


async def test_a_replica_that_has_served_meanwhile_and_waits_again_supersedes_its_primary() -> None:
    """It has handed everything over, or its disk has failed: what it had confirmed is not here."""
    for votes in (Wins(), None):
        assert await settled(says(2), votes=votes) == (["superseded"], [])
    # Another pair's node at that place says nothing of this one.
    strange = Answer(log=attrs.evolve(cast("Log", says(2).log), node_id=OWN), lives=True)
    assert await settled(strange) == ([], ["link"])


async def running(pauses: OwnPauses) -> None:
    """Note that the node runs, as it does."""
    while True:
        pauses.note(trio.current_time())
        await trio.sleep(pauses.period_s)


async def test_a_replica_that_takes_the_role_or_may_have_taken_it_is_not_dropped() -> None:
    gone, silent, refuses = Answer(gone=True), Answer(), Answer(lives=True)
    assert await settled(says(CLAIMED)) == (["superseded"], [])
    assert await settled(says(CLAIMED), gone) == (["superseded"], [])
    # This node was there all the time: who lives and says nothing would have found it, and has not taken over.
    assert await settled(refuses) == ([], ["link"])
    assert await settled(refuses, pause_s=3.0) == (["superseded"], [])
    assert await settled(says(2, "accepted")) == (["superseded"], [])
    assert await settled(says(CLAIMED), says(1)) == ([], ["link"])
    assert await settled(gone) == ([], ["link"])
    assert await settled(silent) == ([], ["link"])


async def test_a_node_that_stood_still_asks_longer_whether_its_replica_takes_the_role() -> None:
    gone = Answer(gone=True)
    assert await settled(gone, gone, says(2, "accepted"), pause_s=3.0) == (["superseded"], [])
    before = trio.current_time()
    assert await settled(gone, pause_s=3.0) == ([], ["link"])
    assert trio.current_time() - before >= 6


class HoldsNoTime(Wins):
    """Votes that are won, and when the first one was held."""

    began_s = 0.0

    async def hold(self, question: str) -> Any:
        self.began_s = self.began_s or trio.current_time()
        return await super().hold(question)


async def test_an_idle_node_asks_its_lost_replica_again_and_waits_no_longer_than_that_is_in_doubt() -> None:
    refuses, gone, before = Answer(lives=True), Answer(gone=True), trio.current_time()
    votes = HoldsNoTime()
    # The place was still closing as it was asked first.
    assert (await settled(refuses, gone, votes=votes), votes.held) == (([], ["link"]), ["stay"])
    assert votes.began_s - before < 1.0
    votes = HoldsNoTime()
    assert (await settled(refuses, says(1), votes=votes), votes.held) == (([], ["link"]), [])
    votes, before = HoldsNoTime(), trio.current_time()
    assert (await settled(refuses, votes=votes), votes.held) == (([], ["link"]), ["stay"])
    assert votes.began_s - before >= 2.0


async def test_a_replica_that_says_again_and_again_that_it_is_gone_is_left_out_once() -> None:
    votes = Wins(refusals=3)
    async with trio.open_nursery() as nursery:
        side = ActingSide.__new__(ActingSide)
        feeder: Any = object()
        side.standing, side._left, side.feeder = Standing(number=3), None, feeder
        side.term = term = ReplicationTerm(1, ReplicationBounds(sync_s=30, slow_s=5))
        dropped = list[str]()
        side._drop = dropped.append  # type: ignore[method-assign]
        for _ in range(5):
            nursery.start_soon(side._note_left, cast("Any", votes), feeder, term, "left")
    assert (dropped, votes.refusals, votes.left) == (["left"], -1, [3] * 4)
