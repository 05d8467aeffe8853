"""The identities in a client's certificate."""

from __future__ import annotations

import hashlib
import ssl
from typing import Any, Final

#: Names of a certificate that may stand for a user, and how they are written before the ``=``.
_SUBJECT: Final = {"commonName": "CN"}
_ALTERNATIVE: Final = {"DNS": "DNS", "URI": "URI", "email": "EMAIL"}


def identities_of(tls: ssl.SSLObject) -> tuple[str, ...]:
    """Return the identities in the other side's certificate; none without a verified certificate.

    Its names, and its fingerprint: ``CN=app``, ``DNS=app.example``, ``URI=spiffe://example/app``,
    ``EMAIL=app@example``, ``SHA256=`` with 64 digits.
    """
    # Empty for a certificate that was not verified.
    names: Any = tls.getpeercert()
    shown = tls.getpeercert(binary_form=True)
    if not names or shown is None:
        return ()
    parts = [part for level in names.get("subject", ()) for part in level]
    found = [f"{_SUBJECT[kind]}={text}" for kind, text in parts if kind in _SUBJECT]
    found += [f"{_ALTERNATIVE[kind]}={text}" for kind, text in names.get("subjectAltName", ()) if kind in _ALTERNATIVE]
    return (*found, f"SHA256={hashlib.sha256(shown).hexdigest()}")
