"""A node's part in replication where the nodes of the pair decide, and other nodes of the cluster vote."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import attrs
import trio

from meshq.abc import Activation, ActiveTerm, NodeControl
from meshq.errors import ConnectionBrokenError, MeshqError, invariant
from meshq.ha.quorum import MajorityVote
from meshq.ha.replication._follower import FollowedNode, FollowEnd, Follower
from meshq.ha.replication._pair_votes import PairVotes
from meshq.ha.replication._reach import Reach
from meshq.ha.replication._replication_activation import ReplicationPart
from meshq.ha.replication._replication_rules import ReplicationRules
from meshq.ha.replication.meeting._meeting_plan import Standpoint, may_start, unasked
from meshq.ha.replication.meeting._standpoints import CLAIMED, serves_on, standpoint, standpoint_of
from meshq.ha.votes import Poll, Pollster, Voters, elected
from meshq.wire import Log, Replicate

#: Seconds for which the voters are told of a claim before clients are served; those that are not there hold up nobody.
TOLD_S: Final = 3.0
#: What is said of a remembered place of the replica, which no operator has chosen: what it is, and what helps.
_CLAIM: Final = (
    ": the replica that came in sync last was there, and may have a newer store; if it is gone for good, "
    "`meshq store claim` lets this node serve without it"
)


class ReplicationActivation(ReplicationPart, Activation):
    """The part of a node whose pair decides, with the votes of other nodes where there are any."""

    def __init__(
        self, rules: ReplicationRules, control: NodeControl, reach: Reach, root: str, nursery: trio.Nursery
    ) -> None:
        super().__init__(rules, control, reach, root, nursery)
        invariant(isinstance(rules.quorum, MajorityVote), "other nodes vote")
        assert isinstance(rules.quorum, MajorityVote)
        self._policy = rules.quorum
        self._votes = self._acting.votes = PairVotes(
            Pollster(reach.factory, self._question, control.env.entropy, rules.quorum),
            control,
            reach,
            standing=lambda: self._standing,
            change=self._change,
            show=self._say,
            stays=rules.vote_on_replication_failure,
        )
        # The node that is lost, while this one may take over from it.
        self._lost_node: FollowedNode | None = None
        self._vote_scope = trio.CancelScope()
        # The node from which this one takes over, and how the link to it has ended; None: it starts.
        self._left: tuple[str, FollowEnd] | None = None
        # When a node that is to go on alone may ask for votes again.
        self._ask_at = -math.inf
        # Why the node waits, as it was said last, and the votes about the node that is lost.
        self._said = ""
        self._held = 0
        # The latest epoch of another node that waits.
        self._newest = 0

    def _question(self) -> Replicate:
        return attrs.evolve(self._wanted(), node_id=self._acting.node_id)

    async def wait(self) -> ActiveTerm:
        """Wait until this node may serve."""
        async with self._remembering:
            # What a disk is still to store of the term before comes first.
            pass
        if self._standing.claimed:
            # Those are told with whom the other node could win a vote.
            voters = self._votes.voters
            self._standing = self._standing.unclaimed
            told = self._tell(voters)
            with trio.move_on_after(TOLD_S):
                await told.wait()
            return await self._take("started")
        own = standpoint(self._standing, primary=self._rules.primary)
        first = self._rules.primary and not self._stepped_back
        alone = (unasked(own, first=first) and not self._asks_votes) or (first and self._made_primary)
        # A place that no operator has chosen is asked in any case.
        asks = self._rules.check_for_live_server or self._standing.place
        if alone and self._named <= own.epoch and not asks:
            if self._standing.partner or self._standing.members:
                text = f"{self._control.name!r} serves without having asked for a node that serves for it already"
                self._warnings.say("live_server_unknown", f"{text}: check_for_live_server=True asks")
            return await self._take("started")
        pause = self._rules.retry_interval
        while True:
            found, reason = await self._round()
            if reason and (term := await self._take_later(reason)) is not None:
                return term
            pause = self._rules.retry_interval if found else min(pause * 2, self._rules.max_retry_interval)
            await trio.sleep(pause)

    # -- looking for the node that serves

    async def _round(self) -> tuple[bool, str]:
        """Try to follow each node of the cluster once.

        Return whether one was followed, and why this node may serve; empty: it may not.
        """
        self._left = None
        answers: list[Standpoint | None] = []
        waiting: list[Log] = []
        refused = missed = False
        for url in self._reach.urls:
            began, end = trio.current_time(), await self._follow(url)
            if end.node is not None:
                if end.may_take_over and await self._takes_over(url, end, began):
                    self._left = url, end
                    return True, end.reason
                await self._doubt()
                self._acting.claiming = False
                self._lose()
                return True, ""
            stranger = await self._is_stranger(url, end)
            refused = refused or not (end.waiting or end.nobody or stranger)
            missed = missed or (url == self._standing.place and not (end.waiting or stranger))
            if not stranger:
                answers.append(None if end.waiting is None else standpoint_of(end.waiting))
                waiting += [] if end.waiting is None else [end.waiting]
        await trio.lowlevel.checkpoint()
        self._handing_on.hear(waiting)
        own = standpoint(self._standing, primary=self._rules.primary)
        self._newest = max([self._newest, *(one.epoch for one in answers if one is not None and one.epoch < CLAIMED)])
        first = not self._stepped_back
        # Where others vote, whoever has served last may ask them, in each life and as often as it likes.
        starts = self._asks_votes and not any(one is not None and one > own for one in answers)
        starts = starts or may_start(own, answers, first=first, refused=refused, asked=self._made_primary)
        starts = starts and own.epoch >= max(self._newest, self._named) and not self._handing_on.nobody_needs_it
        if starts and await self._may_begin(waiting):
            return False, "started"
        self._show_why(missed=missed)
        return False, ""

    def _show_why(self, *, missed: bool) -> None:
        """Show why the node waits.  ``missed``: the place of its replica, which it remembers, has not answered."""
        if missed:
            if not self._last_error.endswith(_CLAIM):
                self._say(f"{self._control.name!r} has no answer from {self._standing.place}{_CLAIM}")
            return
        if self._last_error.endswith(_CLAIM):
            self._last_error = ""
        if not self._last_error or self._last_error.startswith(ConnectionBrokenError.__name__):
            others = [one for one in self._standing.members or (self._standing.partner,) if one != self._control.name]
            who = " and ".join(repr(one) for one in others if one) or "a node that serves"
            asked = ", ".join(self._reach.urls)
            self._say(f"{self._control.name!r} waits for {who}; it has asked {asked}", level=logging.INFO)

    async def _take(self, reason: str) -> ActiveTerm:
        """Begin a term of the next epoch."""
        before = self._standing
        return await self._begin(max(before.epoch, before.named) + 1, before.activation + 1, reason)

    async def _take_later(self, reason: str) -> ActiveTerm | None:
        """Begin a term once the disk takes it; a vote that was won for the term stays given meanwhile.

        Return None where the other node is there, and no vote was asked, or the disk surely has nothing of the term:
        that one may serve.
        """
        voted = self._votes.decide
        while True:
            try:
                return await self._take(reason)
            except OSError as error:
                self._complain(error)
                # Whoever asks meanwhile need not wait for this disk.
                self._acting.claiming = voted
                self._show()
            await trio.sleep(self._rules.retry_interval)
            if voted and (self._left is None or reason != "crash" or self._directory.is_unsure):
                continue
            # Of a node that has a vote the other one hears that it waits only if it gives the vote up for good.
            self._acting.claiming = True
            if self._left is None or not await self._is_gone(*self._left, patience_s=0.0):
                self._acting.claiming = False
                self._lose()
                return None

    def _tell(self, voters: Voters) -> trio.Event:
        """Tell voters in the background that this node takes the role; return an event, set once they know."""
        acting, told = self._acting, trio.Event()
        # Also before the term begins.
        acting.claiming = True
        number = self._standing.number + 1
        self._nursery.start_soon(
            self._votes.tell, number, voters, lambda: acting.claiming or acting.term is not None, told
        )
        return told

    # -- a replica that has lost its primary

    async def _takes_over(self, url: str, end: FollowEnd, began: float) -> bool:
        """Whether the primary is gone, and the others say that this node may take over."""
        if end.reason != "crash":
            # It has said itself that it goes: others only have to know.
            if self._votes.decide:
                self._tell(self._votes.voters)
            return True
        # A node that had a pause may have been dropped meanwhile.
        paused_s = self._pauses.longest_s
        if not await self._is_gone(url, end) or paused_s(began, trio.current_time()) > self._reach.pause_s_max:
            return False
        return await self._is_elected(url, end)

    async def _is_gone(self, url: str, end: FollowEnd, *, patience_s: float | None = None) -> bool:
        """Whether a node whose link has ended does not say that it lives: it may have ended the link by itself.

        One that is silent, or refuses to say, is asked again until its silence is as long as the one that ends a link.
        If it has come back meanwhile, and does not act yet, the newer of the two stores decides, as when they start.
        One that has come back without its store, and serves a new one, is gone.
        """
        node = end.node
        name, node_id = ("", b"") if node is None else (node.name, node.node_id)
        if patience_s is None:
            patience_s = 0.0 if end.silent else self._reach.patience
        answer = await self._asker.ask(url, patience_s=patience_s, name=name, node_id=node_id)
        log = answer.log
        if log is None or node is None:
            return not answer.lives
        if log.kind == "accepted":
            return not serves_on(log, node.node_id, node.journal_id, node.epoch)
        return standpoint_of(log) < standpoint(self._standing, primary=self._rules.primary)

    async def _is_elected(self, url: str, end: FollowEnd) -> bool:
        """Ask for votes, and again after each pause, until one is won, or the primary is there again."""
        self._lost_node, self._vote_scope, self._held = end.node, trio.CancelScope(), 0
        self._life.on("vote")
        self._show()
        won = False
        try:
            with self._vote_scope:
                won = await elected(self._policy, self._vote, partial(self._stays_away, url, end))
        finally:
            self._lost_node = None
        if not (won and self._acting.claiming):
            if not won and self._held > self._policy.vote_retries:
                lost = "its primary" if end.node is None else repr(end.node.name)
                self._say(f"{self._control.name!r} asks for votes no more, after {self._held}: it waits for {lost}")
            return False
        if not self._votes.voters.sets:
            text = f"{self._control.name!r} takes over without a vote: it knows of no other node in the cluster"
            self._warnings.say("nobody_votes", f"{text}, and the node that it has followed may serve, too")
        return True

    async def _vote(self) -> bool:
        self._held += 1
        return (await self._votes.hold("failed")).granted

    async def _stays_away(self, url: str, end: FollowEnd, until: float) -> bool:
        """Wait for the next vote; return False as soon as the primary is there, which this node follows then."""
        while (left := until - trio.current_time()) > 0:
            await trio.sleep(min(left, self._rules.retry_interval))
            gone = True
            with trio.move_on_at(until):
                gone = await self._is_gone(url, end, patience_s=0.0)
            if not gone:
                return False
        return True

    def _give_in(self, wanted: Replicate) -> None:
        node = self._lost_node
        if node is None:
            super()._give_in(wanted)
        elif (node.node_id, node.epoch, node.name) == (wanted.node_id, wanted.epoch, wanted.node_name):
            self._acting.claiming = False
            self._vote_scope.cancel()

    def _give_up(self, follower: Follower) -> None:
        super()._give_up(follower)
        self._vote_scope.cancel()

    def _progressed(self, step: str, follower: Follower) -> None:
        if step == "begun":
            self._say("")
        super()._progressed(step, follower)

    def _complain(self, error: Exception, url: str = "", hint: str = "") -> None:
        """Show an error.

        For the place of the replica say also what helps; while that is missed, what other nodes say is only logged.
        """
        before = self._last_error
        is_place = url == self._standing.place
        super()._complain(error, url, _CLAIM if url and is_place and isinstance(error, MeshqError) else hint)
        if url and not is_place and isinstance(error, MeshqError) and before.endswith(_CLAIM):
            self._last_error = before

    def _say(self, text: str, *, level: int = logging.WARNING) -> None:
        """Log why the node waits, and show that as its last error; an empty text ends that."""
        if text:
            self._warnings.say("waits", text, text, level=level)
            self._last_error = text
        elif self._said == self._last_error or self._last_error.endswith(_CLAIM):
            self._last_error = ""
        self._said = text
        self._show()

    # -- a node that served last

    @property
    def _asks_votes(self) -> bool:
        return self._votes.decide and self._standing.acted and not self._made_primary

    async def _may_begin(self, waiting: Sequence[Log]) -> bool:
        """Whether the others say that this node may serve alone, or its replica has said that it waits."""
        if not self._asks_votes:
            return True
        # What a node of that name says in another life may be the word of another machine.
        known = [one for one in waiting if self._standing.replica in ("", one.instance.hex())]
        names = {one.name for one in known if one.node_id == self._acting.node_id}
        if names.issuperset(set(self._standing.members) - {self._control.name}):
            return True
        await trio.lowlevel.checkpoint()
        if trio.current_time() < self._ask_at:
            return False
        poll: Poll = await self._votes.hold("stay")
        self._ask_at = trio.current_time() + self._policy.vote_retry_wait
        if not poll.granted and self._life.state == "searching":
            self._life.on("isolate")
            self._show("vote_lost")
        return poll.granted

    async def release(self, *, failover: bool) -> None:
        """Give the role up; a node that has lost a vote asks again after the pause between two votes."""
        term = self._acting.term
        lost = term is not None and term.order is not None and term.order.reason == "vote_lost"
        try:
            await super().release(failover=failover)
        finally:
            if lost and self._life.state == "searching":
                self._ask_at = trio.current_time() + self._policy.vote_retry_wait
                self._life.on("isolate")
                self._show("vote_lost")

    @property
    def _named(self) -> int:
        """The epoch below which this node does not serve by itself; who makes a primary of a backup knows best."""
        return 0 if self._made_primary else self._standing.named
