"""The connection of a session to one witness, which is made anew whenever it has ended."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from meshq.abc import Env
from meshq.endpoint import Endpoint
from meshq.errors import ConnectionBrokenError, MeshqError, RefusedError, SettingsError
from meshq.ha.quorum.mesh._channel import Channel
from meshq.ha.quorum.mesh._dial import DialSettings, dialed
from meshq.ha.quorum.mesh._handshake import WitnessFacts
from meshq.ha.quorum.mesh._message_format import decode_reply, encode_question
from meshq.ha.quorum.mesh._witness_machine import Question, Reply

Answered = Callable[[str, Reply], None]


@attrs.frozen(kw_only=True)
class LinkSettings:
    """The settings of a connection to a witness."""

    dial: DialSettings
    session_s: float
    retry_interval_s: float


@attrs.frozen
class _Posted:
    question: Question
    answered: Answered
    until: float


class WitnessLink:
    """A connection to the witness at an endpoint; questions of a connection that has ended are not asked again."""

    def __init__(self, endpoint: Endpoint, settings: LinkSettings, env: Env, names: dict[str, WitnessLink]) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._env = env
        self._channel: Channel | None = None
        # Of all witnesses of the session.
        self._names = names
        self._number = 0
        # Questions that were sent, or wait for a connection, by number.
        self._sent: dict[int, _Posted] = {}
        self._waiting: dict[int, _Posted] = {}
        #: Why there is no connection; None while there is one, or none was tried.
        self.failure: MeshqError | None = None
        self._flush = trio.Event()

    def __str__(self) -> str:
        return str(self._endpoint)

    def post(self, question: Question, answered: Answered, until: float) -> int:
        """Ask now, or as soon as there is a connection before ``until``; return the number of the question."""
        self._number += 1
        posted = _Posted(question, answered, until)
        if self._channel is None:
            self._waiting[self._number] = posted
        else:
            self._send(self._channel, self._number, posted)
        return self._number

    def forget(self, number: int) -> None:
        """Wait for no answer any more; the question is asked all the same."""
        self._sent.pop(number, None)

    def _send(self, channel: Channel, number: int, posted: _Posted) -> None:
        self._sent[number] = posted
        try:
            channel.send_nowait(encode_question(number, posted.question))
        except ConnectionBrokenError as error:
            self.failure = error
        self._flush.set()

    async def run(self) -> None:
        """Keep a connection.  Checkpoint: always.  Cancellation: the connection is closed."""
        while True:
            try:
                await self._connect()
            except MeshqError as error:
                self.failure = error
            finally:
                self._channel = None
                self._sent.clear()
            await trio.sleep(self._settings.retry_interval_s)

    async def _connect(self) -> None:
        async with dialed(self._endpoint, self._settings.dial, self._env) as (channel, facts):
            self._check(facts)
            await self._attend(channel, facts.member)

    def _check(self, facts: WitnessFacts) -> None:
        if not facts.tick_s * 2 <= self._settings.session_s <= facts.tick_s * 20:
            range_ = f"{facts.tick_s * 2:g} to {facts.tick_s * 20:g} seconds"
            allowed = f"{range_}, 2 to 20 ticks of the witness {facts.name!r}"
            raise SettingsError("session", self._settings.session_s, allowed)
        other = self._names.setdefault(facts.name, self)
        if other is not self:
            text = f"{other} and {self} are one witness, {facts.name!r}; each has to be another one"
            raise RefusedError(text, outcome="not_done")

    async def _attend(self, channel: Channel, member: str) -> None:
        self._channel, self.failure = channel, None
        waiting, self._waiting = self._waiting, {}
        for number, posted in waiting.items():
            if trio.current_time() < posted.until:
                self._send(channel, number, posted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_flushing, channel)
            try:
                await self._receive(channel, member)
            except MeshqError as error:
                self.failure = error
            nursery.cancel_scope.cancel()

    async def _keep_flushing(self, channel: Channel) -> None:
        while True:
            await self._flush.wait()
            self._flush = trio.Event()
            try:
                await channel.flush()
            except ConnectionBrokenError:
                # The task that receives hears of it, too.
                return

    async def _receive(self, channel: Channel, member: str) -> None:
        while True:
            number, reply = decode_reply(await channel.receive())
            posted = self._sent.pop(number, None)
            if posted is not None:
                posted.answered(member, reply)

    @property
    def refusal(self) -> MeshqError | None:
        """The reason for which there will be no connection, other than that the witness can't be reached."""
        return self.failure if isinstance(self.failure, (RefusedError, SettingsError)) else None
