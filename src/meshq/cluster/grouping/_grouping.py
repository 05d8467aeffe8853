"""The pins of message groups over links: asks the arbiters, and is the arbiter of some names itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import trio

from meshq.abc import LocalBroker, PinnedGroups
from meshq.cluster._peer import Peer
from meshq.cluster._settings import ClusterSettings
from meshq.cluster._stuck_plan import Cause
from meshq.cluster._topology import ClusterTopology
from meshq.cluster.grouping._arbiter_machine import (
    FREE,
    HOLD,
    LOST,
    MOVE,
    WANT,
    ArbiterMachine,
    Name,
    Said,
    Sender,
    arbiter_of,
)
from meshq.cluster.grouping._correspondence import Correspondence
from meshq.cluster.grouping._kept_introductions import KeptIntroductions
from meshq.cluster.grouping._letter import divided, life_of, members_of, read, restored, written
from meshq.cluster.grouping._steps import decided_by
from meshq.concurrency import Wakeup
from meshq.errors import CallTimeoutError, MeshqError, UsageError

#: The feature of nodes that pin groups.
FEATURE: Final = "groups"
#: Why a node pins none.
OLDER: Final = "is older"
APART: Final = "pins no groups, as it is set up"
#: The modes in which messages go from node to node when they are placed.
MODES: Final = ("on_demand", "strict")
#: Members of a cluster that pins groups.
MEMBERS_MAX: Final = 32
#: Seconds after which a letter is given up.
PATIENCE_S: Final = 2.0
#: Seconds for which a pin is kept that nobody uses, also if there are too many; and parts of these, or of a shorter
#: ``group_timeout``, after which is looked.
CROWDED_S: Final = 10.0
#: Pins that are wanted, beyond which a pause is made between two looks, and its seconds for each: looks take a part of
#: the node's time that does not grow with them.  So many that no node wants cost as much as one.
LOOKED_MAX: Final = 100
LOOK_S: Final = 0.000_05
SKIPPED: Final = 25
PERIODS: Final = 4
#: For each member, if they are not few, before all are told who there is now: more may come.
REST_S: Final = 0.002
FEW: Final = 4


class Grouping:
    """The groups of one cluster connection."""

    def __init__(
        self,
        settings: ClusterSettings,
        broker: LocalBroker,
        topology: ClusterTopology,
        peers: Callable[[], Sequence[Peer]],
        warn: Callable[[str, str, str], None],
    ) -> None:
        self._settings = settings
        self._groups: PinnedGroups = broker.groups
        self._topology = topology
        self._peers = peers
        self._warn = warn
        self._own = broker.control.node_id.hex()
        self._instance = broker.control.instance.hex()
        #: Decides about the names of which this node is the arbiter.
        self.arbiter: ArbiterMachine = ArbiterMachine(self._own, settings.max_group_pins)
        #: Whether this connection serves the groups of its broker.
        self.serves: bool = False
        self._look = Wakeup()
        self._serial = 0
        self._letters = Correspondence(trio.current_time)
        self._introductions = KeptIntroductions(self._groups)
        # Pins that this node has given up, which their arbiters do not know yet.
        self._freed: dict[Name, None] = {}
        # Pins that nodes have which have no queue for the messages of these groups.
        self._lost: dict[Name, str] = {}
        # The nodes that are linked.
        self._linked: frozenset[str] = frozenset()
        # Nodes that pin no groups, and why: they would be waited for in vain, also while they are away.
        self._alone: dict[str, str] = {}
        # None: nothing was seen yet in this life.
        self._active: bool | None = None
        # Pins that were released or crowded out, and looks at which some waited.
        self._counts: Counter[str] = Counter()

    # -- the service

    def take_up(self) -> None:
        """Pin groups before any client can come, if nodes of the cluster are known from before."""
        settings = self._settings
        if settings.load_balancing not in MODES or settings.max_hops > 1 or settings.allow_direct_connections_only:
            return
        self.serves = self._groups.begin(settings.takes, self._look.wake)
        if not self.serves:
            text = f"the message groups of {settings.name} hold for each node alone: another cluster connection pins"
            self._warn("groups_not_clustered", f"{text} those of this broker", settings.name)
        for name, holder in self._groups.kept().items():
            self.arbiter.restore(name, holder)
        for members, lives in restored(*self._groups.introduced()):
            self.arbiter.restore_introduced(members, lives)
        self._see()

    def begin(self, nursery: trio.Nursery) -> None:
        """Ask and answer from now on, in tasks of a nursery."""
        if self.serves:
            nursery.start_soon(self._run)
            nursery.start_soon(self._age)

    def end(self) -> None:
        """Ask nothing more."""
        if self.serves:
            self._groups.end()
            self.serves = False

    @property
    def leaving(self) -> bool:
        """Whether this node leaves, and hands over."""
        return self._topology.own.leaving

    @property
    def settled(self) -> bool:
        """Whether each linked node knows the pins that this node has, and the same members."""
        members = self.arbiter.members
        linked = [(peer.node_id.hex(), peer.session) for peer in self._peers() if peer.connected]
        return all(self._letters.agrees(node, session, members) for node, session in linked if node in members)

    def note(self) -> None:
        """Look again: a peer or a queue has changed."""
        self._look.wake()

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                self._look.clear()
                if self._see() and len(self.arbiter.members) > FEW:
                    # A cluster that forms has one more with each look: else all would be told anew each time.
                    await trio.sleep(REST_S * len(self.arbiter.members))
                    self._see()
                looked = self._round(nursery)
                self._groups.move()
                with trio.move_on_at(self._letters.next_s()):
                    await self._look.wait()
                looked += self._groups.waiting() // SKIPPED
                if looked > LOOKED_MAX:
                    # Each message of a group that waits is a reason to look at all that wait.
                    await trio.sleep(looked * LOOK_S)

    async def _age(self) -> None:
        settings = self._settings
        period_s = min(settings.group_timeout, CROWDED_S) / PERIODS
        while True:
            await trio.sleep(period_s)
            idle, crowded = self._groups.period_over(settings.group_timeout / period_s, settings.max_group_pins)
            self._counts["released"] += len(idle)
            if crowded:
                self._counts["crowded"] += crowded
                text = (
                    f"{settings.name} knows more than max_group_pins={settings.max_group_pins} pins of message groups"
                )
                self._warn("group_pins_full", f"{text}: the ones that were not used for longest are released", "")
            self._freed.update(dict.fromkeys(idle))
            if self.arbiter.count(self._groups.held()):
                # Each letter says that the others have to tell it anew.
                self._letters.tell_anew(*self.arbiter.members)
                self._keep()
                self._look.wake()
            if idle:
                self._look.wake()

    def counts(self) -> dict[str, int]:
        """Return the counters of this life, by name.

        Pins that were ``pinned``, and those of them that were while an introduction was only ``remembered`` from an
        earlier life; ``released`` for being idle, ``crowded`` out, being too many, or ``given_up`` with their node;
        looks at which some ``waited`` for an arbiter that is away; and how often the pins were ``counted``.
        """
        return {
            "pinned": self.arbiter.given,
            **{name: getattr(self.arbiter, name) for name in ("remembered", "counted", "given_up")},
            **{name: self._counts[name] for name in ("released", "crowded", "waited")},
        }

    def keeps(self, queue: str, group: str, node: str) -> Cause | None:
        """Return the cause for messages to stay whose group is not consumed on this node.

        ``node``: the one that consumes the group, by what this node knows; empty: it knows of none.
        """
        arbiter = arbiter_of((queue, group), self.arbiter.members)
        if not self.serves or not self._active:
            return None
        if node:
            why = f"the node that consumes the group {group!r} is away"
            return Cause("group", why, (node,)) if node not in self._linked else None
        if arbiter == self._own:
            silent = self.arbiter.silent((queue, group))
            why = f"this node has to say which node consumes the group {group!r}, and has not heard all others"
            return Cause("group", why, tuple(silent)) if silent else None
        why = f"the node that has to say which node consumes the group {group!r}"
        if arbiter in self._linked:
            return Cause("group", f"{why} does not know it yet", (arbiter,))
        return Cause("group", f"{why} is away", (arbiter,))

    # -- who there is

    def _see(self) -> bool:
        """Take in the members as the links know them; return whether these are others than before."""
        if not self.serves:
            return False
        there = [peer for peer in self._peers() if peer.node_id and peer.state not in ("left", "down", "spare")]
        members = {peer.node_id.hex() for peer in there} | {self._own}
        crowded = len(members) > MEMBERS_MAX
        if crowded:
            text = f"{self._settings.name} has more than {MEMBERS_MAX} nodes: message groups hold for each node alone"
            self._warn("groups_not_clustered", text, self._settings.name)
        changed = self.arbiter.see(members)
        leaving = [peer.node_id.hex() for peer in there if peer.word is not None and peer.word.leaving]
        self._linked = self.arbiter.linked = frozenset(peer.node_id.hex() for peer in there if peer.connected)
        targets = self._linked.difference(leaving) | {self._own}
        # While a node hands over, its groups go where its messages go.
        handing_over = bool(leaving) or self._topology.own.leaving
        active = not (self._apart(there) or crowded or handing_over) and (len(members) > 1 or bool(self.arbiter.pins))
        self._groups.see(members, targets, leavers=leaving, active=active, leaving=self._topology.own.leaving)
        self._letters.keep(self.arbiter.members)
        if active != self._active and (self._active is not None or not active):
            # Each node has consumed its groups on its own, or does so from now on.
            self.arbiter.doubt()
        if changed or active != self._active:
            # Also if they are the same members again that it was told of: the others may have learned more meanwhile.
            self._letters.tell_anew(*self.arbiter.members)
            self._active = active
            self._letters.rest_over()
            self._claim()
        self._keep()
        return changed

    def _apart(self, there: Sequence[Peer]) -> bool:
        """Look for nodes without pins of groups.  A node that is away counts as it did when it was linked."""
        known, self._alone = self._alone, {}
        for peer in there:
            node = peer.node_id.hex()
            why = known.get(node, "")
            if peer.connected:
                features = peer.session[2] if peer.session is not None else ()
                why = OLDER if FEATURE not in features else why.removeprefix(OLDER)
            if why:
                self._alone[node] = why
                text = f"{peer.label} {why}: message groups hold for each node alone while it is there"
                self._warn("groups_not_clustered", text, peer.label)
        return bool(self._alone)

    def _keep(self) -> None:
        """Have the pins written that have changed, and after them who has introduced itself."""
        for name in self.arbiter.changed:
            holder = self.arbiter.pins.get(name)
            self._groups.keep(*name, holder)
            if holder is None and arbiter_of(name, self.arbiter.members) == self._own:
                self._groups.freed(*name)
        self.arbiter.changed.clear()
        # While groups are not pinned each node consumes them on its own: what it has told says nothing of that.
        self._introductions.keep(self.arbiter.introduced() if self._active else {})

    def _claim(self) -> None:
        """Note the pins that this node holds and decides about itself from now on."""
        held = [Said(HOLD, *name) for name in self._groups.held()]
        for one in held:
            # It was given up, and consumed here again while groups were not pinned.
            self._freed.pop((one.queue, one.group), None)
        mine = [one for one in held if arbiter_of((one.queue, one.group), self.arbiter.members) == self._own]
        self._yield(mine, self.arbiter.own(mine))
        self._keep()

    def _yield(self, letter: Sequence[Said], answers: Sequence[str]) -> bool:
        """Give up pins that another node holds, too; return whether there are any."""
        yields = False
        for said, answer in zip(letter, answers, strict=True):
            if said.kind == HOLD and answer and answer != self._own:
                self._warn("group_consumed_twice", _twice(said), f"{said.queue} {said.group}")
                self._groups.told(said.queue, said.group, answer)
                yields = True
        return yields

    # -- what is asked

    def _round(self, nursery: trio.Nursery) -> int:
        """Begin to tell and ask each arbiter that is not being asked, in tasks of a nursery; return how many pins some
        node is to get."""
        self._freed.update(dict.fromkeys(self._groups.given_up()))
        again = self._topology.own.leaving and bool(self._groups.held())
        members = self.arbiter.members
        wanted = [
            Said(WANT if here else MOVE, queue, group, node) for queue, group, node, here in self._groups.wanted()
        ]
        freed = [Said(FREE, *name) for name in self._freed]
        lost = [Said(LOST, *name, node) for name, node in self._lost.items()]
        by_arbiter: dict[str, list[Said]] = {}
        for said in [*freed, *lost, *wanted]:
            by_arbiter.setdefault(arbiter_of((said.queue, said.group), members), []).append(said)
        own = by_arbiter.pop(self._own, [])
        again |= self._answered(own, self.arbiter.own(self._asking(own)))
        self._count_lost(own)
        self._letters.ask_again(self._own, None, again=again)
        self._keep()
        for peer in self._peers():
            node, asked = peer.node_id.hex(), by_arbiter.get(peer.node_id.hex(), ())
            if not peer.connected:
                self._counts["waited"] += any(said.kind != FREE for said in asked)
            elif node in members and self._letters.may_begin(node, peer.session):
                if asked or not self._letters.is_told(node, peer.session, members):
                    self._letters.begin(node)
                    nursery.start_soon(self._converse, peer, node, asked)
                else:
                    self._letters.ask_again(node, peer.session, again=False)
        return len(wanted)

    async def _converse(self, peer: Peer, node: str, asked: Sequence[Said]) -> None:
        """Tell and ask a node once.  One that does not answer holds up only the groups of which it is the arbiter."""
        session = peer.session
        again = await self._tell(peer, node, asked)
        if self._letters.ended(node, session, again=again):
            self._look.wake()

    async def _tell(self, peer: Peer, node: str, asked: Sequence[Said]) -> bool:
        """Tell a node all that is new to it, and ask it; return whether that has to be done again."""
        session, members = peer.session, self.arbiter.members
        again = False
        try:
            if not self._letters.is_told(node, session, members):
                self._letters.telling(node)
                shared, (theirs, gone) = members, await self._introduce(peer, node, members)
                missing = members - theirs
                if theirs < members and missing <= gone and not missing & (self._linked | {self._own}):
                    # It knows that some have left, which are away for this node.
                    shared, (theirs, _) = theirs, await self._introduce(peer, node, theirs)
                again = shared != theirs or not self._letters.told(node, session, members, shared)
            for letter in divided(asked):
                self._asking(letter)
                answers, _, _ = await self._send(peer, letter, members, begins=False, complete=False)
                if self.arbiter.members != members:
                    # Another node may decide by now, to which this one has told only what it held before.
                    return True
                again |= self._answered(letter, answers)
        except MeshqError:
            # The link says itself what it lacks.
            return True
        return again

    async def _introduce(self, peer: Peer, node: str, members: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Tell a node all pins of which it is the arbiter; return its members, and the nodes that are gone for it."""
        held = [Said(HOLD, *name) for name in await decided_by(node, self._groups.held(), members)]
        known = self.arbiter.known(await decided_by(node, list(self.arbiter.pins), members))
        theirs = members
        letters, gone = divided([*known, *held]) or [[]], frozenset[str]()
        for index, letter in enumerate(letters, 1):
            answers, theirs, gone = await self._send(
                peer, letter, members, begins=index == 1, complete=index == len(letters)
            )
            if self._yield(letter, answers):
                # It goes by what this node holds only when it has been told without these.
                self._letters.tell_anew(node)
        if self._own in theirs:
            # Whoever does not know this node yet has not heard it.
            self.arbiter.forget(known)
        self._keep()
        return theirs, gone

    def _asking(self, letter: Sequence[Said]) -> Sequence[Said]:
        for said in letter:
            if said.kind in (WANT, MOVE):
                self._groups.ask(said.queue, said.group)
        return letter

    def _count_lost(self, said: Iterable[Said]) -> bool:
        """Have the holders of lost pins tell theirs anew; return whether there are any.  This node gives its own up."""
        lost = [one for one in said if one.kind == LOST]
        if lost:
            held = set(self._groups.held())
            mine = [one for one in lost if one.node == self._own and (one.queue, one.group) not in held]
            self.arbiter.own([Said(FREE, one.queue, one.group) for one in mine])
            self._letters.tell_anew(*{one.node for one in lost})
        return bool(lost)

    def _answered(self, asked: Iterable[Said], answers: Iterable[str]) -> bool:
        """Take in answers; return whether some are missing."""
        again = False
        for said, answer in zip(asked, answers, strict=True):
            if said.kind == FREE:
                self._freed.pop((said.queue, said.group), None)
            elif said.kind == LOST:
                self._lost.pop((said.queue, said.group), None)
            elif answer in self.arbiter.members and self._groups.has_place(said.queue, answer):
                self._groups.told(said.queue, said.group, answer)
            else:
                again = True
                if answer in self.arbiter.members:
                    # Maybe it does not know that it has the pin: nothing can go there that would tell it.
                    self._lost[said.queue, said.group] = answer
        return again

    async def _send(
        self, peer: Peer, letter: Sequence[Said], members: frozenset[str], *, begins: bool, complete: bool
    ) -> tuple[list[str], frozenset[str], frozenset[str]]:
        self._serial += 1
        arguments = {
            "cluster": self._settings.name,
            "node_id": self._own,
            "instance": self._instance,
            "serial": self._serial,
            "members": " ".join(sorted(members)),
            "names": written(letter),
            "begins": begins,
            "complete": complete,
            "lacks": peer.node_id.hex() in self.arbiter.lacking(),
        }
        link = peer.link
        if link is None:
            raise UsageError(f"{peer.label} is not linked")
        values: Mapping[str, Any] = {}
        with trio.move_on_after(PATIENCE_S) as patience:
            values = await link.ask("pin_groups", arguments)
        if patience.cancelled_caught:
            text = f"{peer.label} has not answered a letter about pins in {PATIENCE_S:g} s"
            raise CallTimeoutError(text) from TimeoutError(f"waited {PATIENCE_S:g} s for an answer")
        self._note_pinning(peer.node_id.hex(), pins=not values.get("alone", False))
        if not values.get("introduced", True) and not complete:
            # It has forgotten what it was told, as this node was away or gone for it.
            self._letters.tell_anew(peer.node_id.hex())
            self._look.wake()
        answers = str(values.get("holders", "")).split(",") if letter else []
        if len(answers) != len(letter):
            raise UsageError(f"{peer.label} has not answered what was asked")
        there, gone = (frozenset(str(values.get(key, "")).split()) for key in ("members", "gone"))
        return answers, there, gone

    def _note_pinning(self, node: str, *, pins: bool) -> None:
        """Note whether a node pins groups, as it has answered.

        Raises:
            UsageError: it does not.
        """
        known = self._alone.get(node, "")
        if not pins:
            self._alone[node] = known or APART
            self._look.wake()
            raise UsageError(f"the node {node} {APART}")
        if known == APART:
            del self._alone[node]
            self._look.wake()

    # -- what is answered

    def hear(self, letter: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer the letter of another node.

        Raises:
            UsageError, RemoteProtocolError: no node writes that; nothing of it was taken in.
        """
        sender = Sender(letter["node_id"], life_of(letter["instance"]), letter["serial"])
        members = members_of(letter["members"], sender.node)
        said = read(letter["names"])
        holders = self.arbiter.hear(sender, members, said, begins=letter["begins"], complete=letter["complete"])
        if self._count_lost(said):
            self._look.wake()
        self._keep()
        if letter["lacks"] or not self._letters.knew(sender.node, members):
            # It knows others by now, and has to be told anew what this node knows.
            self._letters.tell_anew(sender.node)
            self._look.wake()
        passed_on = self.arbiter.passed_on(said)
        self._letters.tell_anew(*passed_on)
        if self._letters.heard(sender.node, members) or passed_on:
            self._look.wake()
        if letter["complete"]:
            # What this node wants itself may be given now.
            self._look.wake()
        gone = {peer.node_id.hex() for peer in self._peers() if peer.node_id and peer.state in ("left", "down")}
        there = self.arbiter.members
        return {
            "holders": ",".join(holders),
            "introduced": sender.node not in self.arbiter.lacking(),
            "members": " ".join(sorted(there) if len(there) <= MEMBERS_MAX else ()),
            # An answer has no room for all nodes of a large cluster, nor for all that have ever gone.
            "gone": " ".join(sorted(((gone | self.arbiter.gone) & members) - there)),
        }


def _twice(said: Said) -> str:
    return f"the group {said.group!r} of {said.queue!r} was consumed on two nodes that had not met: one gives it up"
