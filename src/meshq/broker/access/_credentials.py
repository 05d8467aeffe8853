"""Credentials by role: verifiers of users and of cluster peers, and the same answers for unknown names.

There are two separate tables: the password of a user never admits a cluster peer, whatever its name.  Salts are made
from a secret of this start, for all names alike: the salt of a user who does not exist looks like that of one who does,
however often it is asked for.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Final

from meshq import limits
from meshq.settings import Secret
from meshq.wire import SALT_BYTES, Role, Verifier, decline, make_verifier

_SEPARATOR: Final = b"\0"
#: A node derives a key for every node that it links to; a cluster's password need not be one that people remember.
_ITERATIONS: Final[dict[Role, int]] = {"client": limits.ITERATIONS, "peer": limits.ITERATIONS_MIN}


class Credentials:
    """The credentials of one node.  ``secret``: random bytes of this start."""

    def __init__(self, secret: bytes, certificates: Mapping[str, str] | None = None) -> None:
        self._secret = secret
        self._certificates = certificates or {}
        self._tables: dict[Role, dict[str, Verifier]] = {}

    @classmethod
    def derive(
        cls,
        tables: Mapping[Role, Mapping[str, Secret]],
        secret: bytes,
        certificates: Mapping[str, str] | None = None,
    ) -> Credentials:
        """Derive credentials from passwords; only verifiers are kept.  Slow on purpose, once per name.

        ``certificates``: users by the identity in a client certificate.
        """
        made = cls(secret, certificates)
        for role, users in tables.items():
            made.add(role, users)
        return made

    def add(self, role: Role, users: Mapping[str, Secret]) -> None:
        """Take these names into the table of a role, which is served from now on."""
        table = self._tables.setdefault(role, {})
        for user, password in users.items():
            table[user] = make_verifier(password.reveal().encode(), self._salt(role, user), _ITERATIONS[role])

    def serves(self, role: Role) -> bool:
        """Whether this role has any credentials."""
        return role in self._tables

    @property
    def certified(self) -> bool:
        """Whether clients may come in by their certificates."""
        return bool(self._certificates)

    def user_of(self, identities: Sequence[str]) -> str:
        """The user whom a certificate stands for.

        Raises:
            SecurityError: nobody, or more than one.
        """
        users = dict.fromkeys(self._certificates[name] for name in identities if name in self._certificates)
        if len(users) != 1:
            says = f"{len(users)} users" if users else "no user"
            raise decline("not_authenticated", f"the certificate of {identities[0]} stands for {says} here")
        return next(iter(users))

    def find(self, role: Role, user: str) -> tuple[Verifier, bool]:
        """Return the verifier of a user, and whether the user exists; otherwise no proof fits the verifier.

        The same is computed in both cases.
        """
        nobody = Verifier(
            self._salt(role, user),
            _ITERATIONS[role],
            self._mac(b"stored", role, user),
            self._mac(b"server", role, user),
        )
        found = self._tables.get(role, {}).get(user)
        return (nobody, False) if found is None else (found, True)

    def _salt(self, role: Role, user: str) -> bytes:
        return self._mac(b"salt", role, user)[:SALT_BYTES]

    def _mac(self, purpose: bytes, role: Role, user: str) -> bytes:
        return hmac.digest(self._secret, _SEPARATOR.join((purpose, role.encode(), user.encode())), "sha256")

    def __repr__(self) -> str:
        sizes = ", ".join(f"{role}={len(table)}" for role, table in self._tables.items())
        return f"<Credentials {sizes}>"
