"""A node asks others for their votes, all at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import attrs
import trio

from meshq.abc import Entropy
from meshq.client import ClientFactory, LogLink
from meshq.errors import MeshqError
from meshq.ha.quorum import MajorityVote
from meshq.ha.votes._ballot_box_machine import LIFE_BYTES
from meshq.ha.votes._count_machine import BOX_ID_CHARACTERS, Count, Voters, box_of
from meshq.ha.votes._voter import YES
from meshq.ids import IDENTITY_BYTES
from meshq.wire import Log, Logged, Replicate

#: Seconds for the answer who a voter is, and for one that takes its vote back.
WHO_S = 3.0
BACK_S = 1.0


@attrs.frozen(kw_only=True)
class Poll:
    """The outcome of one attempt.  ``count``: with its decision; ``against``: the other nodes that may have won."""

    count: Count
    granted: bool

    def lost_to(self, holder: str) -> bool:
        """Whether another node may have won."""
        return not self.granted and self.count.elects(holder)


@attrs.frozen(kw_only=True)
class KnownVoters:
    """The voters that have answered.  ``number``: the latest change for which one of them has voted; 0: none has."""

    voters: tuple[str, ...]
    number: int


class Pollster:
    """Asks for one life of a node.  ``factory``: makes links to a URL; ``wanted``: makes the question."""

    def __init__(
        self,
        factory: Callable[[str], ClientFactory],
        wanted: Callable[[], Replicate],
        entropy: Entropy,
        policy: MajorityVote,
    ) -> None:
        self._factory = factory
        self._wanted = wanted
        self._entropy = entropy
        self._life = entropy.token(LIFE_BYTES)
        #: The settings of a vote.
        self.policy: MajorityVote = policy

    async def who(self, urls: Iterable[str]) -> KnownVoters:
        """Ask the nodes at these URLs for their ids as voters; return the voters that have answered.

        Checkpoint: always.
        Cancellation: the questions are dropped.
        """
        found: dict[str, tuple[str, int]] = {}
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(WHO_S):
            async with trio.open_nursery() as nursery:
                for url in urls:
                    nursery.start_soon(self._who, url, found)
        voters = tuple(sorted(f"{box}{url}" for box, (url, _) in found.items()))
        return KnownVoters(voters=voters, number=max((number for _, number in found.values()), default=0))

    async def _who(self, url: str, found: dict[str, tuple[str, int]]) -> None:
        header = await self._ask(url, attrs.evolve(self._wanted(), votes=True), None)
        if header is not None and header.instance:
            found.setdefault(header.instance.hex(), (url, header.number))

    async def hold(
        self, number: int, voters: Voters, *, least: bool = False, agreed: int = 0, made: bool = False
    ) -> Poll:
        """Ask all voters once for the change of a number; votes of an attempt that is lost are given back.

        ``least`` and ``agreed``: as of ``Count``.
        ``made``: the change is made already: no vote is given back, and one for a later change of this node is as good.

        Checkpoint: always.
        Cancellation: votes that were given stay so, until another attempt or change.
        """
        count = Count(voters, self.policy, least=least, agreed=agreed)
        await trio.lowlevel.checkpoint()
        attempt = self._life + self._entropy.token(IDENTITY_BYTES - LIFE_BYTES)
        wanted = attrs.evolve(self._wanted(), votes=True, number=number, vote=attempt)
        over = trio.Event()
        if count.decision is None:
            async with trio.open_nursery() as nursery:
                for voter in count.asked:
                    nursery.start_soon(self._one, voter, wanted, count, over, made)
                with trio.move_on_after(self.policy.quorum_vote_wait):
                    await over.wait()
                if count.close():
                    nursery.cancel_scope.cancel()
                over.set()
                nursery.cancel_scope.deadline = trio.current_time() + BACK_S
        return Poll(count=count, granted=count.close())

    async def _one(self, voter: str, wanted: Replicate, count: Count, over: trio.Event, made: bool) -> None:
        """Ask a voter; once the vote is lost give a vote back that it has given."""

        async def keep(link: LogLink, header: Log) -> None:
            self._add(voter, header, wanted, count, over, made)
            if header.flags & YES and not made:
                await over.wait()
                if not count.decision:
                    link.tell(Logged(kind="withdraw"))
                    await link.receive()

        if await self._ask(voter[BOX_ID_CHARACTERS:], wanted, keep) is None:
            self._add(voter, None, wanted, count, over, made)

    def _add(
        self, voter: str, header: Log | None, wanted: Replicate, count: Count, over: trio.Event, made: bool
    ) -> None:
        if header is None or header.instance.hex() != box_of(voter):
            # Another one is there now, which has not voted before.
            decision = count.add(voter, False)
        else:
            # A vote for an earlier change says nothing of this one.
            holder = header.name if header.number >= wanted.number else ""
            yes = bool(header.flags & YES) or (made and holder == wanted.node_name)
            decision = count.add(voter, yes, holder)
        if decision is not None:
            over.set()

    async def _ask(
        self, url: str, wanted: Replicate, keep: Callable[[LogLink, Log], Awaitable[None]] | None
    ) -> Log | None:
        """Ask a node; ``keep``: awaited with the answer while the link is there.  None: there was no answer."""
        answer: Log | None = None
        try:
            link = self._factory(url).log_link(wanted, instance=wanted.instance)
            async with link.connected():
                header = (await link.receive()).header
                if header.kind == "vote":
                    answer = header
                    if keep is not None:
                        await keep(link, header)
        except MeshqError:
            # Who can't be reached, or refuses, has not voted.
            return answer
        return answer
