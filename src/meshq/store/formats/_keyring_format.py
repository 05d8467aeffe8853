"""Encryption at rest: the operator's keys, and the key of each file that is derived from one of them.

The operator's key never encrypts anything itself.  Each segment has a key of its own, derived from the operator's by
HKDF with the segment's random salt: no two segments share a key, and a nonce (a batch number) is used once under it.
A header names the operator's key by sixteen bytes that reveal nothing about it: so a wrong key is told from damage.

The first key of the ring encrypts new files; all keys read.  So a key is replaced by putting a new key in front: the
files of the old key stay readable, until compaction and reclaiming have removed the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from meshq.errors import SettingsError
from meshq.limits import ENCRYPTION_KEY_BYTES

#: Bytes by which a file names its key; all zero: none.
KEY_ID_BYTES: Final = 16
NO_KEY: Final = bytes(KEY_ID_BYTES)


class Keyring:
    """The keys that a store is written and read with; an empty keyring: nothing is encrypted."""

    __slots__ = ("_keys", "current_id")

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = {_name_of(key): key for key in keys}
        #: The name of the key that encrypts what is written.
        self.current_id: bytes = _name_of(keys[0]) if keys else NO_KEY

    def __repr__(self) -> str:
        return f"<Keyring of {len(self._keys)}>"

    def check(self, key_id: bytes, file: str) -> bytes | None:
        """Return the operator's key of an encrypted file; None if the file is not encrypted.

        Raises:
            SettingsError: the file is encrypted with a key that is not in the ring.
        """
        if key_id == NO_KEY:
            return None
        key = self._keys.get(key_id)
        if key is None:
            allowed = f"the key {key_id.hex()}, with which {file} is encrypted"
            given = "none" if not self._keys else ", ".join(name.hex() for name in self._keys)
            raise SettingsError("encryption_keys", given, allowed)
        return key

    def derive(self, key_id: bytes, salt: bytes, purpose: bytes, file: str = "a file of the store") -> bytes | None:
        """Return the key of one file; None if the file is not encrypted.

        Raises:
            SettingsError: the file is encrypted with a key that is not in the ring.
        """
        key = self.check(key_id, file)
        if key is None:
            return None
        return HKDF(hashes.SHA256(), ENCRYPTION_KEY_BYTES, salt, purpose).derive(key)


def _name_of(key: bytes) -> bytes:
    return blake2b(key, digest_size=KEY_ID_BYTES, person=b"meshq key name").digest()
