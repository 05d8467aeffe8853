"""How the entries of the delivery matrix send: as programs do, each message as a large one, or none durable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from meshq.abc import Env
from meshq.client import Client, Transaction, connect
from meshq.message import Message


@attrs.frozen(kw_only=True)
class Sending:
    """The sending of one column.

    ``durable``: whether messages are.  ``large``: whether the body of every message is streamed, however small; then
    messages go one by one, as only a single message can be streamed.
    """

    durable: bool = True
    large: bool = False

    def connect(self, url: str, *, env: Env, **settings: Any) -> Client:
        """Make a client for messages that are sent like this."""
        client = connect(url, env=env, **settings)
        if self.large:
            # No program may ask for so little.
            object.__setattr__(client._settings, "min_large_message_size", 0)
        return client

    async def send(self, client: Client, address: str, body: bytes, **about: Any) -> None:
        """Send one message.  Checkpoint, Cancellation, Raises: as ``client.send``."""
        await client.send(address, body, durable=self.durable, **about)

    async def send_many(self, client: Client, address: str, messages: Iterable[bytes | Message]) -> None:
        """Send several messages.  Checkpoint, Cancellation, Raises: as ``client.send_many``."""
        alike = [attrs.evolve(one, durable=self.durable) if isinstance(one, Message) else one for one in messages]
        if self.large:
            for one in alike:
                await client.send(address, one if isinstance(one, Message) else Message(one, durable=self.durable))
        else:
            await client.send_many(address, alike, durable=self.durable)

    async def send_in(self, transaction: Transaction, address: str, body: bytes) -> None:
        """Send one message in a transaction.  Checkpoint, Cancellation, Raises: as ``transaction.send``."""
        await transaction.send(address, body, durable=self.durable)
