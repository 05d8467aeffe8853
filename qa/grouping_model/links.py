"""A link of the model: letters and messages from one life of a node to another node, late, lost, or kept for later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, cast

import attrs
import trio

from meshq.broker.catalog._distribution_plan import RemoteBinding
from meshq.cluster.grouping._letter import read
from meshq.errors import BrokenError, MeshqError, caused
from qa.grouping_model.clockwork import Clockwork
from qa.grouping_model.node import ModelNode, NodeLife
from qa.grouping_model.queues import QUEUE, ForwardRow, ModelForward

#: Seconds of a frame on its way, by seed, and when all is calm; of a slow one, which is one in so many; and of one that
#: comes after its session.
FRAMES_S: Final = (0.01, 0.1, 0.4)
FRAME_S: Final = 0.01
SLOW_S: Final = 3.0
SLOW: Final = 15
LATE_S: Final = 1.0
#: Seconds until a link is tried, until a lost one is noticed, and for which a session may be resumed.
OPEN_S: Final = 0.2
NOTICE_S: Final = 0.5
RESUME_S: Final = 0.5
#: Seconds after which a node is given up that is away.
GIVE_UP_S: Final = 1.5
#: One letter in so many is lost with its session, or its answer is, by seed.
LOST: Final = (6, 25)


@attrs.define(eq=False)
class Ask:
    """A letter without an answer so far."""

    done: trio.Event = attrs.field(factory=trio.Event)
    answer: Mapping[str, Any] | None = None
    error: MeshqError | None = None

    def ends(self, *, answer: Mapping[str, Any] | None = None, error: MeshqError | None = None) -> None:
        """Have the asker go on."""
        if not self.done.is_set():
            self.answer, self.error = answer, error
            self.done.set()


@attrs.define(eq=False)
class Session:
    """A session of a link with one life of the other node."""

    about: tuple[int, bytes, tuple[str, ...]]
    life: NodeLife
    over: bool = False
    asks: dict[Ask, None] = attrs.field(factory=dict)
    #: The number of the last message that was sent in it.
    sent: int = 0
    #: By direction, the time at which the last frame arrives; frames that wait for a link.
    last: dict[bool, float] = attrs.field(factory=lambda: {True: 0.0, False: 0.0})
    held: list[Callable[[], object]] = attrs.field(factory=list)


@attrs.frozen
class Word:
    """The last word of a node about itself."""

    leaving: bool


class ModelPeer:
    """Another node at the end of a link, in place of a ``Peer``."""

    def __init__(
        self, clockwork: Clockwork, here: NodeLife, there: ModelNode, cut: Callable[[str, str], bool], *, gives_up: bool
    ) -> None:
        self._clockwork = clockwork
        self._here = here
        self.there = there
        self._cut = cut
        self._gives_up = gives_up
        self._rng = clockwork.rng(f"link/{here.name}/{there.place}")
        self._lost = clockwork.rng("lost").choice(LOST)
        self._frame_s = clockwork.rng("frames").choice(FRAMES_S)
        self._open: Session | None = None
        self.forward = here.node.forwards.setdefault(there.place, ModelForward(there.node_id.hex()))
        here.queues[self.forward.name] = self.forward
        self.binding: RemoteBinding | None = None
        self.node_id = there.node_id if there.place in here.node.known else b""
        self.state = "left" if here.node.known.get(there.place) else "connecting"
        self.connected = False
        self.word: Word | None = None
        self.label = f"the node {there.place}"
        self._looks = False
        if gives_up and self.node_id:
            # It was there before the restart, and does not answer.
            clockwork.at(self._rng.random() * GIVE_UP_S, self._give_up)

    # -- as a peer

    @property
    def session(self) -> tuple[int, bytes, tuple[str, ...]] | None:
        """The description of the session."""
        return self._open.about if self._open is not None else None

    @property
    def link(self) -> ModelPeer | None:
        """The link, once there was one."""
        return self if self.node_id else None

    async def ask(self, operation: str, letter: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a letter and wait for its answer."""
        session = self._open
        if session is None or not self._here.alive:
            raise caused(BrokenError("there is no session"), ConnectionError(self.label))
        self._clockwork.count("seen.letters")
        ask = Ask()
        session.asks[ask] = None
        self._note(f"-> {letter['serial']} {_told(letter)}")
        self._carry(session, True, partial(self._heard, session, letter, ask), letter=letter)
        await ask.done.wait()
        if ask.error is not None:
            raise ask.error
        assert ask.answer is not None
        return ask.answer

    # -- frames

    @property
    def reaches(self) -> bool:
        """Whether frames go between the two nodes."""
        return (
            self._here.alive and self.there.life is not None and not self._cut(self._here.node.place, self.there.place)
        )

    def _carry(
        self, session: Session, forth: bool, frame: Callable[[], object], letter: Mapping[str, Any] | None = None
    ) -> None:
        """Have a frame arrive, in its turn, as long as its session lasts."""
        calm, swarm = self._clockwork.calm, self._clockwork.swarm
        slow = not calm and swarm.on("grouping.slow_link") and not self._rng.randrange(SLOW)
        now = self._clockwork.now
        frame_s = FRAME_S if calm else self._frame_s
        at = max(session.last[forth] + 1e-6, now + self._rng.random() * (SLOW_S if slow else frame_s))
        session.last[forth] = at
        self._clockwork.at(at - now, partial(self._arrive, session, frame, letter))

    def _arrive(self, session: Session, frame: Callable[[], object], letter: Mapping[str, Any] | None) -> None:
        if session.over:
            if letter is not None and self._clockwork.swarm.on("grouping.late") and not self._rng.randrange(2):
                # A frame of a session that is over, which the other node takes in late.
                self._clockwork.at(self._rng.random() * LATE_S, partial(self._late, session, letter))
        elif session.held or not self.reaches or self.there.life is not session.life:
            # It stays behind those that came before.
            session.held.append(partial(self._arrive, session, frame, letter))
        else:
            frame()

    def _late(self, session: Session, letter: Mapping[str, Any]) -> None:
        if session.life.alive:
            self._clockwork.count("seen.late_letter")
            self._note(f"late {letter['serial']}")
            session.life.hear(letter)

    def _heard(self, session: Session, letter: Mapping[str, Any], ask: Ask) -> None:
        lossy = not self._clockwork.calm and self._clockwork.swarm.on("grouping.loss")
        if lossy and not self._rng.randrange(self._lost):
            self._clockwork.count("fault.letter_lost")
            self._end_session("a letter is lost")
            self._arrive(session, frame=_nothing, letter=letter)
            return
        try:
            answer = session.life.hear(letter)
        except MeshqError as error:
            ask.ends(error=error)
            return
        if lossy and not self._rng.randrange(self._lost):
            self._clockwork.count("fault.answer_lost")
            self._end_session("an answer is lost")
            return
        self.there.journal.when_all_is_durable(
            lambda: self._carry(session, False, partial(self._answered, session, letter, ask, answer))
        )

    def _answered(self, session: Session, letter: Mapping[str, Any], ask: Ask, answer: Mapping[str, Any]) -> None:
        holders = ",".join(one[:8] for one in str(answer["holders"]).split(","))
        self._note(f"<- {letter['serial']} [{holders}] introduced {answer['introduced']} {_short(answer['members'])}")
        session.asks.pop(ask, None)
        ask.ends(answer=answer)

    # -- the life of the link

    def look(self) -> None:
        """Open the link, or notice that it is lost, if that is so; after a while."""
        if not self._looks and self._here.alive:
            self._looks = True
            lost = self.connected and not self._is_up
            self._clockwork.at(self._rng.random() * (NOTICE_S if lost else OPEN_S), self._look)

    @property
    def _is_up(self) -> bool:
        return self.reaches and self._open is not None and self._open.life is self.there.life

    def _look(self) -> None:
        self._looks = False
        if not self._here.alive:
            return
        if self.connected and not self._is_up:
            self.connected = False
            self._note("is lost")
            self._clockwork.at(self._rng.random() * RESUME_S, partial(self._part, self._open))
            self._here.grouping.note()
        if self.connected and self._open is not None:
            self._flush(self._open)
        if not self.connected and self.reaches and not self.there.gone:
            self._connect()

    def _connect(self) -> None:
        life = self.there.life
        assert life is not None
        session = self._open
        if session is not None and session.life is life and not session.over:
            self._note("is resumed")
            self.connected = True
            self._flush(session)
        else:
            self._end_session("another one begins")
            about = self._rng.randrange(1 << 30), life.instance, ("groups",)
            self._open = Session(about, life)
            self.node_id, self.state, self.connected = self.there.node_id, "linked", True
            self._here.node.known[self.there.place] = False
            self._note("is linked")
            self.forward.roster.consumers["link"] = None
            self._describe(life)
            self.pump()
        self._here.grouping.note()
        # The other node is alive.
        for peer in life.peers:
            if peer.node_id == self._here.node.node_id or not peer.node_id:
                peer.look()

    def _flush(self, session: Session) -> None:
        """Let the frames arrive that have waited for a link."""
        held, session.held = session.held, []
        for frame in held:
            frame()

    def _part(self, session: Session | None) -> None:
        """Give up a session that was not resumed."""
        if session is self._open and not self.connected and self._here.alive:
            self._end_session("the node is away")
            self.gone("away")

    def _end_session(self, why: str) -> None:
        session, self._open = self._open, None
        self.connected = False
        self.forward.roster.consumers.clear()
        if session is not None:
            self._note(f"ends its session: {why}")
            session.over = True
            session.held.clear()
            for ask in list(session.asks):
                ask.ends(error=caused(BrokenError(why), ConnectionError(why)))
            self._here.grouping.note()
            self.look()

    def gone(self, how: str) -> None:
        """Take in that the node is away, has left, or is given up."""
        if how == "away" and self.state in ("left", "down"):
            return
        if how != "away":
            self._end_session(f"the node is {how}")
        if how != self.state:
            self._note(f"is {how}")
        self.state = how
        self._here.node.known[self.there.place] = how == "left"
        if self.binding is not None:
            self.binding = self.binding._replace(gone=how) if how == "away" else None
        self._here.described(changed=True)
        if how == "away":
            self.look()
            if self._gives_up:
                self._clockwork.at(self._rng.random() * GIVE_UP_S, self._give_up)
        else:
            for message in self.forward.empty():
                self._here.route(message)

    def _give_up(self) -> None:
        if self.state in ("away", "connecting") and self._here.alive and not self.connected and not self.reaches:
            self._clockwork.count("fault.down")
            self.gone("down")

    # -- what the other node tells of itself

    def tell(self) -> None:
        """Send the description of the other node."""
        session = self._open
        if session is not None and session.life is self.there.life:
            self._carry(session, False, partial(self._describe, session.life, *self._state(session.life)))

    def _state(self, life: NodeLife) -> tuple[bool, int, bool]:
        queue = life.node.queue
        return queue is not None, len(queue.roster.consumers) if queue is not None else 0, life.own.leaving

    def _describe(self, life: NodeLife, *state: Any) -> None:
        there, consumers, leaving = state or self._state(life)
        self.word = Word(leaving)
        self.binding = (
            RemoteBinding(cast(Any, self.forward), "on_demand", 1, QUEUE, QUEUE, "anycast", consumers, ())
            if there and not leaving
            else None
        )
        self._here.described(changed=True)

    # -- messages

    def pump(self) -> None:
        """Carry the messages that are stored for the other node."""
        session = self._open
        if session is not None and self.forward.last > session.sent:
            rows = [row for row in self.forward.rows if row.number > session.sent]
            session.sent = self.forward.last
            self._carry(session, True, partial(self._carried, session, rows))

    def _carried(self, session: Session, rows: list[ForwardRow]) -> None:
        for row in rows:
            if row.number > self.forward.stored:
                self.forward.stored = row.number
                if self.there.queue is not None:
                    session.life.take(row.message)
                else:
                    session.life.route(row.message)
        if rows:
            self._carry(session, False, partial(self.forward.done, rows[-1].number))

    def _note(self, what: str) -> None:
        self._clockwork.note(f"{self._here.name}-{self.there.place} {what}")


def _nothing() -> None:
    pass


def _short(ids: object) -> str:
    return "{" + " ".join(one[:8] for one in str(ids).split()) + "}"


def _told(letter: Mapping[str, Any]) -> str:
    said = " ".join(f"{one.kind} {one.group}{' ' + one.node[:8] if one.node else ''}," for one in read(letter["names"]))
    how = "".join(name[0] for name in ("begins", "complete", "lacks") if letter[name])
    return f"{said} {how} {_short(letter['members'])}"
