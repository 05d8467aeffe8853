"""The context of a client's parts: session, flusher, settings and clock for producers, consumers and transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Unpack

from meshq.abc import Env
from meshq.client.calls._calls import Call
from meshq.client.session._flusher import Flusher
from meshq.client.session._session import ClientSession
from meshq.client.settings._settings import ClientSettings
from meshq.concurrency import Block
from meshq.errors import UsageError
from meshq.ids import IDENTITY_BYTES
from meshq.loops import check_in_trio
from meshq.message import Message, SendOptions
from meshq.wire import Call as WireCall
from meshq.wire import Frame, FrameType


class MessageSender(Protocol):
    """The sending side of a client, for answers to messages."""

    async def send(self, address: str, body: bytes | Message, **keywords: Unpack[SendOptions]) -> None:
        """Send one message; as ``client.send``."""


class ClientContext:
    """The session of one client, its environment, and the calls that its parts have in common.

    ``sender``: the client, for answers to messages.
    """

    __slots__ = ("_block", "_env", "_transaction_producer", "flusher", "now_ms", "sender", "session", "settings")

    def __init__(
        self, session: ClientSession, flusher: Flusher, env: Env, block: Block, *, sender: MessageSender
    ) -> None:
        self.session: ClientSession = session
        self.settings: ClientSettings = session.settings
        #: Sends the gathered messages at the end of each loop turn.
        self.flusher: Flusher = flusher
        self.sender: MessageSender = sender
        #: The wall clock, ms.
        self.now_ms: Callable[[], int] = env.wall.now_ms
        self._env = env
        self._block = block
        # Under which transactions send; made for the first of them.
        self._transaction_producer = b""

    def check(self) -> None:
        """Raise unless the client is open."""
        self.session.facts.check()
        if not self._block.open:
            check_in_trio("connect")
            raise UsageError("the client is not open: use it in 'async with'")

    def token(self) -> bytes:
        """Make the id of a producer."""
        return self._env.entropy.token(IDENTITY_BYTES)

    def transaction_producer(self) -> bytes:
        """Return the id of the producer under which transactions send."""
        self._transaction_producer = self._transaction_producer or self.token()
        return self._transaction_producer

    def failpoint(self, name: str) -> bool:
        """Whether the environment asks for the rare case ``name``."""
        return self._env.failpoint(name)

    # -- calls

    async def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation of the broker; return the named values of the answer.

        Checkpoint: always.  Cancellation: the operation may be carried out or not.
        Raises:
            MeshqError: the client is not open, the broker has refused, or there is no answer.
        """
        self.check()
        flat = tuple(item for pair in arguments.items() for item in pair)
        header = WireCall(operation=operation, arguments=flat).encode()
        call = Call(operation, lambda number: Frame(FrameType.CALL, first=number, header=header))
        return await self.session.ask(call)

    async def pages(
        self, operation: str, names: tuple[str, ...], **about: Any
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Call for all pages of an answer; return the values beside the rows, and the rows as dicts.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            MeshqError: as ``ask``.
        """
        rows: list[dict[str, Any]] = []
        while True:
            values = await self.ask(operation, **about, after=len(rows))
            before = len(rows)
            while f"{names[0]}{len(rows) - before}" in values:
                index = len(rows) - before
                rows.append({name: values[f"{name}{index}"] for name in names if f"{name}{index}" in values})
            if not values.get("more") or len(rows) == before:
                return values, rows
