"""The votes of other nodes about one node of a pair, and the voters that give them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import attrs
import trio

from meshq.abc import NodeControl
from meshq.ha.replication._feeder import Feeder
from meshq.ha.replication._reach import Reach, same_place
from meshq.ha.replication._standing_format import Standing
from meshq.ha.replication._term import ReplicationTerm
from meshq.ha.votes import Count, Poll, Pollster, Voters
from meshq.notifications import VoteHeld
from meshq.wire import Replicate

#: Seconds between two looks at the nodes of the cluster, and those after which all of them are asked who they are.
LOOK_S: Final = 1.0
ASK_S: Final = 15.0


class PairVotes:
    """The votes about one node.

    ``standing``: returns its memory; ``change``: changes that durably, and returns whether it could.  ``show``: tells
    an operator why the node waits; empty: nothing keeps it.
    ``stays``: a node that serves and loses the vote steps back.
    """

    def __init__(
        self,
        pollster: Pollster,
        control: NodeControl,
        reach: Reach,
        *,
        standing: Callable[[], Standing],
        change: Callable[[Callable[[Standing], Standing]], Awaitable[bool]],
        show: Callable[[str], None],
        stays: bool,
    ) -> None:
        self._pollster = pollster
        self._control = control
        self._reach = reach
        self._standing = standing
        self._change = change
        self._show = show
        #: Whether a node that serves asks for leave to stay, and steps back without it.
        self.stays: bool = stays
        #: Seconds between two votes.
        self.wait_s: float = pollster.policy.vote_retry_wait

    @property
    def voters(self) -> Voters:
        """The voters about the next change."""
        return Voters(self._standing().voters, self._standing().later)

    @property
    def decide(self) -> bool:
        """Whether this node may not go on alone, or take over, without a vote."""
        return len(self._standing().members) > 1 and (bool(self.voters.sets) or self._loses_alone)

    @property
    def are_known(self) -> bool:
        """Whether there are others that could vote."""
        return bool(self.voters.sets or self._reach.lives) or self._loses_alone

    @property
    def _loses_alone(self) -> bool:
        """Whether a vote without voters is lost, and a node that serves has to win one."""
        return self.stays and self._pollster.policy.vote(others=0).decision is False

    async def hold(self, question: str) -> Poll:
        """Ask once for the next change, and notify.

        Checkpoint: always.
        Cancellation: as of ``Pollster.hold``.
        """
        least = question == "stay" and not self.stays
        number, agreed = self._standing().number + 1, int(self._host_agrees)
        poll = await self._pollster.hold(number, self.voters, least=least, agreed=agreed)
        if self._control.board.notify is not None:
            count = poll.count
            about = {"asked": len(count.asked), "needed": count.needed, "yes": count.yes}
            self._control.board.notify(VoteHeld, question=question, granted=poll.granted, **about)
        self._show("" if poll.granted else self._lost(question, poll.count))
        return poll

    @property
    def _host_agrees(self) -> bool:
        """Whether this node runs in the process of a node that is not asked: that lives, and is one of the cluster."""
        host = self._reach.host_url
        return bool(host) and not any(same_place(host, url) for url in self.voters.urls)

    def _lost(self, question: str, count: Count) -> str:
        """Return a text for operators about a vote that was lost."""
        what = "takes over when it has won a vote, and has lost one"
        if question == "stay" and self._control.board.report.role == "primary":
            what = "confirms nothing until it has won a vote, and has lost one"
        elif question == "stay":
            what = "serves alone when it has won a vote, and has lost one"
        tally = f"{count.yes} of the {count.needed} votes needed ({len(count.asked)} asked)"
        return f"{self._control.name!r} {what}: {tally}{self._too_many(count.needed)}"

    def _too_many(self, needed: int) -> str:
        known = max(map(len, self.voters.sets), default=0)
        size = self._pollster.policy.size
        return f"; a size of {size} needs more votes than there are nodes known that vote" if needed > known else ""

    def say_held(self, replica: str) -> None:
        """Show that nothing is confirmed since the replica was lost."""
        name = self._control.name
        self._show(f"{name!r} confirms nothing until {replica!r}, which it has lost, answers, or a vote is won")

    async def tell(self, number: int, voters: Voters, lasts: Callable[[], bool], told: trio.Event) -> None:
        """Have the others know that this node has made a change, without waiting for them to agree.

        They are told until more than half know it, as long as the change ``lasts``; ``told`` is set then.

        Checkpoint: always.
        Cancellation: some know it.
        """
        while not (await self._pollster.hold(number, voters, least=True, made=True)).granted:
            await trio.sleep(self.wait_s)
            if not lasts():
                return
        told.set()

    # -- of a node that serves

    async def enroll(self, wanted: Replicate, lasts: Callable[[], bool]) -> int:
        """Note durably that a replica has all that is confirmed from now on, and who votes about the next change.

        Return the number of the change; 0: it could not be noted, or the replica does not last.

        Checkpoint: always.
        Cancellation: noted or not.
        """
        made, lives = list[int](), self._reach.voting(wanted.host)
        # Also before the node knows the cluster its voters are asked, because of the number.
        found = await self._pollster.who(dict.fromkeys((*lives, *self.voters.urls)))
        names = (self._control.name, wanted.node_name)

        def enrolled(before: Standing) -> Standing:
            if not lasts():
                return before
            voters = Voters(before.voters).next(found.voters, lives)
            # Behind votes that were given already, of which an older copy of the directory does not know, none is won.
            made.append(number := max(before.number, found.number) + 1)
            replica = wanted.instance.hex()
            return attrs.evolve(before, number=number, members=names, replica=replica, voters=voters, later=())

        return made[0] if await self._change(enrolled) and made else 0

    async def leave_out(self, only: int = 0) -> bool:
        """Note durably that no other node has all that is confirmed; return whether that could be done.

        ``only``: the number of the change that this is for; a later one stays.

        Checkpoint: always.
        Cancellation: noted or not.
        """
        self._show("")

        def left(one: Standing) -> Standing:
            if only not in (0, one.number):
                return one
            return attrs.evolve(one, number=one.number + 1, members=(self._control.name,), later=())

        return await self._change(left)

    async def look(self, feeder: Feeder, term: ReplicationTerm) -> None:
        """Tell the replica of other voters, as they come and go, as long as it follows.

        It is dropped if voters have voted for later changes than this pair knows of.

        Checkpoint: always.
        Cancellation: nothing more is told.
        """
        term.knows_voters = 0
        host = feeder.wanted.host
        told, looked, again = 0, self._reach.voting(host), trio.current_time() + ASK_S
        while not feeder.ended:
            await trio.sleep(LOOK_S)
            lives, now = self._reach.voting(host), trio.current_time()
            if not lives or (lives == looked and now < again):
                continue
            looked, again = lives, now + ASK_S
            # A voter that serves no more, and lives, lets another one take its place.
            known = await self._pollster.who(dict.fromkeys((*lives, *self.voters.urls)))
            if known.number > self._standing().number:
                # Neither node would win a vote: the replica comes again, with a number above.
                feeder.end("left")
                return
            found = Voters(self._standing().voters).next(known.voters, lives)
            if found == self._standing().voters or feeder.ended:
                continue
            if not await self._change(partial(self._with_voters, feeder, found)):
                continue
            if feeder.ended:
                return
            told += 1
            feeder.say_voters(told, found)
            while term.knows_voters < told and not feeder.ended:
                await term.changed.wait()
            if not feeder.ended and not await self._change(partial(attrs.evolve, voters=found, later=())):
                # The next change would forget those of whom the replica knows by now.
                feeder.end("disk")

    def _with_voters(self, feeder: Feeder, found: tuple[str, ...], before: Standing) -> Standing:
        """Return the memory once others vote; a replica that was in sync before there were voters counts from then."""
        names, replica = (self._control.name, feeder.wanted.node_name), feeder.wanted.instance.hex()
        return before if feeder.ended else attrs.evolve(before, members=names, replica=replica, later=found)
