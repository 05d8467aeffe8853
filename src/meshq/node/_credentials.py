"""The salted passwords of a node: of the users of its security, and of the peers of its services."""

from __future__ import annotations

from collections.abc import Mapping

from meshq import abc
from meshq.broker import Credentials
from meshq.node._settings import BrokerSettings
from meshq.settings import Secret
from meshq.wire import Role

#: Bytes of the random salt.
SECRET_BYTES = 32


async def credentials_of(settings: BrokerSettings, env: abc.Env) -> Credentials | None:
    """Return the salted passwords of the node's users."""
    tables: dict[Role, Mapping[str, Secret]] = {}
    if settings.security is not None:
        tables["client"] = settings.security.users
    if settings.peers:
        tables["peer"] = settings.peers
    if not tables:
        return None
    certificates = settings.security.certificates if settings.security is not None else None
    return await env.threads.run(Credentials.derive, tables, env.entropy.token(SECRET_BYTES), certificates)
