"""A connection to a witness that is ready for questions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from meshq.abc import Env
from meshq.endpoint import Endpoint
from meshq.errors import ConnectionBrokenError
from meshq.ha.quorum.mesh._channel import Channel
from meshq.ha.quorum.mesh._handshake import WitnessFacts, greet_witness
from meshq.settings import Secret


@attrs.frozen(kw_only=True)
class DialSettings:
    """The settings of a connection to a witness; the timeout is for the connection, and again for the login."""

    ensemble: str
    user: str
    password: Secret
    tls: object
    connection_timeout_s: float


@asynccontextmanager
async def dialed(endpoint: Endpoint, settings: DialSettings, env: Env) -> AsyncIterator[tuple[Channel, WitnessFacts]]:
    """A connection to the witness at an endpoint, closed at the end of the block.

    Checkpoint: always.
    Cancellation: the connection is closed.
    Raises:
        ConnectionBrokenError: the witness can't be reached, or does not answer in time.
        RefusedError: it is of another ensemble.
        SecurityError: one side does not know the password.
        RemoteProtocolError: it is no witness.
    """
    timeout_s = settings.connection_timeout_s
    with trio.move_on_after(timeout_s) as scope:
        stream = await env.network.connect(endpoint.host, endpoint.port)
    if scope.cancelled_caught:
        late = ConnectionBrokenError(f"{endpoint} can't be reached: no connection in time", outcome="not_done")
        raise late from TimeoutError(f"waited {timeout_s:g} s for a connection")
    try:
        with trio.move_on_after(timeout_s) as scope:
            if endpoint.scheme == "tls":
                stream = await env.tls.client(settings.tls).wrap(stream, endpoint.host)
            channel = Channel(stream)
            facts = await greet_witness(
                channel,
                ensemble=settings.ensemble,
                user=settings.user,
                password=settings.password,
                token=env.entropy.token,
            )
        if scope.cancelled_caught:
            late = ConnectionBrokenError(f"{endpoint} does not answer in time", outcome="not_done")
            raise late from TimeoutError(f"waited {timeout_s:g} s for a login")
        yield channel, facts
    finally:
        stream.close()
