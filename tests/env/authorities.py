"""Certificates for tests."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

#: Long over.
EXPIRED = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


class Authority:
    """Vouches for hosts."""

    def __init__(self, name: str) -> None:
        self.made = trustme.CA(organization_name=name)

    def trust(self, context: ssl.SSLContext) -> None:
        """Let a context believe whom this authority vouches for."""
        self.made.configure_trust(context)

    def write(self, path: Path) -> str:
        """The authority's own certificate as a file."""
        self.made.cert_pem.write_to_path(str(path))
        return str(path)

    def issue(self, path: Path, *names: str, expired: bool = False, password: bytes | None = None) -> str:
        """A certificate with its key as one file."""
        issued = self.made.issue_cert(*names, not_after=EXPIRED if expired else None)
        key = issued.private_key_pem.bytes()
        if password is not None:
            loaded = load_pem_private_key(key, None)
            how = BestAvailableEncryption(password)
            key = loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how)
        path.write_bytes(b"".join([key, *(blob.bytes() for blob in issued.cert_chain_pems)]))
        return str(path)
