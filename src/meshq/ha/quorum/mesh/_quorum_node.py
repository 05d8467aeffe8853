"""A node of a quorum: a witness with a journal of its own, and acceptors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Final

import attrs
import trio
from trio import TaskStatus

from meshq import limits
from meshq.abc import Env, Listener, Stream, TlsSide
from meshq.address import check_name
from meshq.concurrency import BackgroundBlock, first_error
from meshq.endpoint import Endpoint
from meshq.errors import (
    ClosedError,
    ConnectionBrokenError,
    MeshqError,
    RefusedError,
    RemoteProtocolError,
    SettingsError,
    UsageError,
)
from meshq.ha.quorum.mesh._channel import Channel
from meshq.ha.quorum.mesh._handshake import WitnessFacts, greet_session
from meshq.ha.quorum.mesh._message_format import decode_question, decode_state, encode_list, encode_reply, encode_state
from meshq.ha.quorum.mesh._node_life import QUORUM_NODE_TRANSITIONS
from meshq.ha.quorum.mesh._witness_machine import Question, Reply, Witness, member_of
from meshq.lifecycle import LifeCycle
from meshq.logs import logger
from meshq.loops import check_in_trio
from meshq.settings import Acceptor, Secret
from meshq.store import PLAIN, Journal
from meshq.wire import SALT_BYTES, Verifier, make_verifier

Attend = Callable[[Stream], Awaitable[None]]

_log = logger("quorum")
#: Connections at a time; further ones are closed at once.
CONNECTIONS_MAX: Final = 1_000
#: Seconds for TLS and login.
GREETING_S: Final = 10.0
_REFUSED_PAUSE_S: Final = 0.1
#: Sessions lie between so many ticks.
TICKS: Final = (2, 20)
TICK_S: Final = (0.01, 60.0)


@attrs.frozen(kw_only=True)
class QuorumNodeStatistics:
    """The figures of a ``QuorumNode``.

    ``connections``: open ones.  ``node_ids``: known ones.  ``held``: node ids of which a session has the promise.
    """

    connections: int
    node_ids: int
    held: int


class QuorumNode:
    """A witness, one node of a quorum: the witness keeps its promises in a journal, and serves no messages.

    ``async with QuorumNode(...) as node``, or ``await nursery.start(node.run)``.  ``name``: differs from those of the
    other witnesses.  ``acceptors``: URLs or ``Acceptor``; plaintext beyond the loopback device needs ``insecure=True``.
    ``password``: of ``user``, the same at all witnesses and sessions.  ``ensemble``: the name of the whole quorum.
    ``tick``: seconds; a session lasts for 2 to 20 of them.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    def __init__(
        self,
        name: str,
        *,
        data_dir: str | PathLike[str],
        acceptors: Sequence[str | Acceptor],
        password: str | Secret,
        user: str = "quorum",
        ensemble: str = "meshq",
        tick: float = 1.0,
        tls: object = None,
        insecure: bool = False,
        env: Env | None = None,
    ) -> None:
        check_name("name", name)
        check_name("ensemble", ensemble)
        if type(tick) not in (int, float) or not TICK_S[0] <= tick <= TICK_S[1]:
            raise SettingsError("tick", tick, f"a number from {TICK_S[0]} to {TICK_S[1]}")
        given = [one if isinstance(one, Acceptor) else Acceptor(one, tls=tls, insecure=insecure) for one in acceptors]
        if not given:
            raise SettingsError("acceptors", acceptors, "one URL or more")
        self._acceptors = given
        self._env_given = env
        self._name = name
        self._ensemble = ensemble
        self._tick_s = float(tick)
        self._user = user
        self._password = password if isinstance(password, Secret) else Secret(password)
        self._journal = Journal(data_dir, env=env)
        self._place = str(data_dir)
        # It has a journal, and with it promises, from the start on.
        self._witness = Witness(name)
        # Where the newest promise of each node id is in the journal.
        self._positions: dict[bytes, int] = {}
        self._connections = 0
        self._running = trio.CancelScope()
        self._block = BackgroundBlock(f"the quorum node {name!r}")
        #: The URLs that are really bound.
        self.urls: list[str] = []
        self._life = LifeCycle(f"the quorum node {name!r}", QUORUM_NODE_TRANSITIONS)

    def __repr__(self) -> str:
        return f"<QuorumNode {self._name!r} of {self._ensemble!r} {self.state}>"

    @property
    def name(self) -> str:
        """The name of the witness."""
        return self._name

    @property
    def settings(self) -> dict[str, object]:
        """The settings by the names of their parameters; ``tls`` and ``insecure`` are those of each acceptor."""
        return {
            "name": self._name,
            "data_dir": self._place,
            "acceptors": tuple(self._acceptors),
            "password": self._password,
            "user": self._user,
            "ensemble": self._ensemble,
            "tick": self._tick_s,
        }

    @property
    def member(self) -> str:
        """The name of the witness with the id of its journal, once it runs: a lost journal makes it another member."""
        return self._witness.member

    @property
    def state(self) -> str:
        """``new``, ``running``, ``stopped`` or ``failed``."""
        return self._life.state

    def statistics(self) -> QuorumNodeStatistics:
        """The figures of this moment."""
        now = trio.current_time()
        ids = self._witness.promises
        held = sum(self._witness.held(node_id, now) for node_id in ids)
        return QuorumNodeStatistics(connections=self._connections, node_ids=len(ids), held=held)

    async def __aenter__(self) -> QuorumNode:
        check_in_trio("QuorumNode")
        await self._block.open(self.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return await self._block.close(error, self.stop)

    async def stop(self) -> None:
        """Stop: ``run`` ends, and nothing is promised any more.  Checkpoint: always.  Cancellation: the node stops."""
        check_in_trio("QuorumNode")
        self._running.cancel()
        await trio.lowlevel.checkpoint()

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until ``stop``; started as soon as all acceptors are bound.

        Checkpoint: always.
        Cancellation: stops.
        Raises:
            BusyError: another process has the directory.
            DamagedError: the journal has what no witness has promised.
            ConnectionBrokenError: an address can't be bound.
        """
        check_in_trio("QuorumNode")
        env = self._env()
        failed = True
        try:
            with self._running:
                async with self._journal:
                    await self._recover()
                    await self._serve(env, task_status)
            failed = False
        except trio.Cancelled:
            failed = False
            raise
        finally:
            self._life.on("fail" if failed else "stop")

    def _facts(self) -> WitnessFacts:
        return WitnessFacts(name=self._name, member=self._witness.member, ensemble=self._ensemble, tick_s=self._tick_s)

    def _env(self) -> Env:
        if self._env_given is not None:
            return self._env_given
        from meshq.env import default_env

        return default_env()

    async def _recover(self) -> None:
        self._witness = Witness(member_of(self._name, self._journal.journal_id))
        async for record in self._journal.replay():
            node_id, state = decode_state(record.payload, self._place, record.position)
            self._witness.recover(node_id, state, trio.current_time())
            self._positions[node_id] = record.position

    async def _serve(self, env: Env, task_status: TaskStatus[None]) -> None:
        password = self._password.reveal().encode()
        salt = env.entropy.token(SALT_BYTES)
        verifier = await env.threads.run(make_verifier, password, salt, limits.ITERATIONS)
        listeners: list[Listener] = []
        try:
            for acceptor in self._acceptors:
                listeners.append(await self._listen(acceptor, env))
            async with trio.open_nursery() as nursery:
                for acceptor, listener in zip(self._acceptors, listeners, strict=True):
                    side = env.tls.server(acceptor.tls) if acceptor.tls is not None else None
                    attend = partial(self._attend, side=side, env=env, verifier=verifier)
                    nursery.start_soon(self._accept, listener, nursery, attend)
                self._life.on("serve")
                task_status.started()
                await trio.sleep_forever()
        except BaseExceptionGroup as group:
            only = first_error(group)
            raise only from only.__cause__
        finally:
            for listener in listeners:
                listener.close()

    async def _listen(self, acceptor: Acceptor, env: Env) -> Listener:
        endpoint = acceptor.endpoint
        try:
            listener = await env.network.listen(endpoint.host, endpoint.port)
        except OSError as error:
            raise ConnectionBrokenError(f"{acceptor.url} can't be bound: {error}", outcome="not_done") from error
        self.urls.append(str(Endpoint(endpoint.scheme, endpoint.host, listener.port)))
        return listener

    async def _accept(self, listener: Listener, nursery: trio.Nursery, attend: Attend) -> None:
        while True:
            try:
                stream = await listener.accept()
            except ClosedError:
                return
            except OSError as error:
                _log.warning("no connection can be accepted: %s", error, extra={"event": "accept_refused"})
                await trio.sleep(_REFUSED_PAUSE_S)
                continue
            if self._connections >= CONNECTIONS_MAX:
                stream.close()
            else:
                nursery.start_soon(attend, stream)

    async def _attend(self, stream: Stream, side: TlsSide | None, env: Env, verifier: Verifier) -> None:
        self._connections += 1
        try:
            with trio.move_on_after(GREETING_S) as greeting:
                if side is not None:
                    stream = await side.wrap(stream)
                channel = Channel(stream)
                await greet_session(channel, self._facts(), user=self._user, verifier=verifier, token=env.entropy.token)
            if not greeting.cancelled_caught:
                await self._answer(channel)
        except (ConnectionBrokenError, ClosedError):
            return
        except (RemoteProtocolError, RefusedError) as error:
            _log.warning("%s is turned away: %s", stream.peer, error, extra={"event": "turned_away"})
        finally:
            self._connections -= 1
            stream.close()

    async def _answer(self, channel: Channel) -> None:
        while True:
            number, question = decode_question(await channel.receive())
            if question.kind == "list":
                listed = self._witness.listed(question.node_id)
                await self._journal.wait_durable(self._journal.last)
                await channel.send(encode_list(number, listed))
            else:
                await channel.send(encode_reply(number, await self._judge(question)))

    async def _judge(self, question: Question) -> Reply:
        """Answer a question; all that the answer tells of is durable."""
        low, high = (self._tick_s * ticks for ticks in TICKS)
        if question.kind == "claim" and not low <= question.session_s <= high:
            raise RemoteProtocolError(f"a session of {question.session_s:g} s, where {low:g} to {high:g} are allowed")
        former = self._witness.promised(question.node_id)
        reply, changed = self._witness.answer(question, trio.current_time())
        if changed:
            before = self._positions.get(question.node_id)
            deletes = () if before is None else (before,)
            try:
                payload = encode_state(question.node_id, reply.promise)
            except UsageError as error:
                self._witness.recover(question.node_id, former, trio.current_time())
                raise RemoteProtocolError(f"a promise that is too large: {error}") from error
            try:
                self._positions[question.node_id] = self._journal.append_nowait(PLAIN, (payload,), deletes=deletes)
            except MeshqError as error:
                # A promise that is not on the disk must not be renewed.
                self._witness.recover(question.node_id, former, trio.current_time())
                raise ConnectionBrokenError("the disk takes no promise", outcome="not_done") from error
        await self._journal.wait_durable(self._journal.last)
        return reply
