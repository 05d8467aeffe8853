"""Clients of the delivery matrix that send every message as a large one, or as a non-durable one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import attrs

from meshq.abc import Env
from meshq.client import Client, Transaction, connect
from meshq.message import Message


class Connecting(Protocol):
    """Makes a client."""

    def __call__(self, url: str, *, env: Env) -> Client: ...


class LargeClient(Client):
    """Streams the body of every message, however small: one by one, as there is no other way."""

    async def send_many(self, address: str, messages: Iterable[bytes | Message], *, durable: bool = True) -> None:
        """One after the other.  Checkpoint, Cancellation, Raises: as ``send``."""
        for message in messages:
            if isinstance(message, Message):
                about = {field.name: getattr(message, field.name) for field in attrs.fields(Message)}
                await self.send(address, **about)
            else:
                await self.send(address, message, durable=durable)


def connect_large(url: str, *, env: Env) -> Client:
    """A client of which every message is a large one."""
    client = connect(url, env=env)
    client.__class__ = LargeClient
    # No program may ask for so little.
    object.__setattr__(client._settings, "min_large_message_size", 0)
    return client


class PassingTransaction(Transaction):
    """Sends nothing that is durable."""

    async def send(self, address: str, body: bytes | Message, *, durable: bool = True, **about: Any) -> None:
        """A message that is not.  Checkpoint, Cancellation, Raises: as of a transaction."""
        await super().send(address, body, durable=False, **about)


class PassingClient(Client):
    """A client that sends each message as a non-durable one."""

    async def send(self, address: str, body: Any, *, durable: bool = True, **about: Any) -> None:
        """A message that is not.  Checkpoint, Cancellation, Raises: as of a client."""
        await super().send(address, body, durable=False, **about)

    async def send_many(self, address: str, messages: Iterable[bytes | Message], *, durable: bool = True) -> None:
        """Messages that are not.  Checkpoint, Cancellation, Raises: as of a client."""
        non_durable = [attrs.evolve(one, durable=False) if isinstance(one, Message) else one for one in messages]
        await super().send_many(address, non_durable, durable=False)

    def transaction(self, *arguments: Any, **about: Any) -> Transaction:
        """Return a client that sends each message as a non-durable one."""
        transaction = super().transaction(*arguments, **about)
        transaction.__class__ = PassingTransaction
        return transaction


def connect_passing(url: str, *, env: Env) -> Client:
    """A client of which no message is durable."""
    client = connect(url, env=env)
    client.__class__ = PassingClient
    return client
