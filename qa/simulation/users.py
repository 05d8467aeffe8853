"""Two users of a simulated broker: the application, which may do everything, and a thief, who may send to one queue.

The thief comes under the producer ids of the application, which stand in every message: what the one has stored must
say nothing of what the other has.  The thief also tries what it has no permission for, which must be refused and
change nothing.
"""

from __future__ import annotations

import random
from typing import Final, TypedDict

import attrs
import trio

from meshq.abc import Entropy, Env
from meshq.client import Client
from meshq.errors import MeshqError, SecurityError
from meshq.ids import IDENTITY_BYTES
from meshq.permissions import Permissions
from meshq.settings import Security
from meshq.testing.history._history import body_of
from qa.simulation.workload import ADDRESSES, CONSUMED, Actor, Dial, Scene

APP: Final = "app"
THIEF: Final = "thief"
#: The one queue to which the thief may send; nobody consumes it, so it is counted in the journal.
OWN: Final = "thief.own"
PASSWORDS: Final = {APP: "the application's", THIEF: "the thief's"}
_ALL: Final = Permissions(send={APP}, consume={APP}, create={APP}, manage={APP}, browse={APP})
SECURITY: Final = Security(
    users=PASSWORDS,
    roles={APP: {APP}, THIEF: {THIEF}},
    permissions={"#": _ALL, OWN: attrs.evolve(_ALL, send={APP, THIEF})},
)
#: How many ids of others are known, the latest.
KNOWN: Final = 50
USER_SIGHTS: Final = ("users", "stolen_ids", "refused_sends", "refused_consumers")


class NotedEntropy(Entropy):
    """The randomness of a client whose ids others come to know."""

    def __init__(self, own: Entropy, noted: list[bytes]) -> None:
        self._own = own
        self._noted = noted

    def token(self, size: int) -> bytes:
        token = self._own.token(size)
        if size == IDENTITY_BYTES:
            self._noted.append(token)
            del self._noted[:-KNOWN]
        return token

    def generator(self) -> random.Random:
        return self._own.generator()


class StolenEntropy(Entropy):
    """The randomness of a client that takes the ids of others for its own, each once."""

    def __init__(self, own: Entropy, noted: list[bytes]) -> None:
        self._own = own
        self._noted = noted

    def token(self, size: int) -> bytes:
        if size == IDENTITY_BYTES and self._noted:
            return self._noted.pop()
        return self._own.token(size)

    def generator(self) -> random.Random:
        return self._own.generator()


class Login(TypedDict, total=False):
    """The keywords with which a client says who it is."""

    user: str
    password: str


@attrs.define(eq=False)
class Users:
    """How clients of a run log in."""

    #: There are users at all.
    on: bool
    _noted: list[bytes] = attrs.field(factory=list)

    def login(self, user: str) -> Login:
        """Return the credentials of a user."""
        return {"user": user, "password": PASSWORDS[user]} if self.on else {}

    def env(self, env: Env, user: str) -> Env:
        """The outside world of a user's client."""
        if not self.on:
            return env
        entropy = NotedEntropy if user == APP else StolenEntropy
        return attrs.evolve(env, entropy=entropy(env.entropy, self._noted))

    @property
    def security(self) -> Security | None:
        """The security of the broker."""
        return SECURITY if self.on else None

    @property
    def queues(self) -> list[str]:
        """The queues that are there for users."""
        return [OWN] if self.on else []


class Thief(Actor):
    """A user who sends under the ids of others, and tries calls without permission."""

    def __init__(self, scene: Scene, name: str, rng: random.Random, dial: Dial) -> None:
        super().__init__(scene, name, rng, dial)
        #: How often each of ``USER_SIGHTS`` was met.
        self.met: dict[str, int] = dict.fromkeys(USER_SIGHTS, 0)

    async def use(self, client: Client) -> None:
        """A few attempts.  Checkpoint: always.  Cancellation: ends it.  Raises: nothing."""
        for _ in range(self.rng.randrange(1, 6)):
            if self.finished:
                return
            await self.rng.choice((self._send, self._send, self._send_elsewhere, self._consume))(client)
            await trio.sleep(self.rng.expovariate(0.7))

    async def _send(self, client: Client) -> None:
        for _ in range(self.rng.choice((1, 3, 20))):
            await self._send_to(client, OWN, (OWN,))
        self.met["stolen_ids"] += 1

    async def _send_elsewhere(self, client: Client) -> None:
        address = self.rng.choice(tuple(ADDRESSES))
        if await self._send_to(client, address, ADDRESSES[address]):
            self.history.final.left("sends without permission that were confirmed", 1)

    async def _send_to(self, client: Client, address: str, queues: tuple[str, ...]) -> bool:
        uid = self.scene.uid()
        op = self.history.sent(self.name, queues, uid, producer=f"{self.name}/{self.clients}/{address}")
        try:
            await client.send(address, body_of(uid))
        except MeshqError as error:
            self.met["refused_sends"] += isinstance(error, SecurityError)
            self.history.send_failed(op, error.outcome)
            return False
        self.history.send_ok(op)
        return True

    async def _consume(self, client: Client) -> None:
        try:
            async with client.consumer(self.rng.choice(CONSUMED)) as consumer:
                await consumer.receive_many(1, timeout=1.0)
        except SecurityError:
            self.met["refused_consumers"] += 1
        except MeshqError as error:
            self.history.note(f"{self.name}: {error!r}")
        else:
            self.history.final.left("consumers without permission", 1)
