"""The file of a large message's body: a header, then blocks with a tag each.

====== ===== ============================================================================
offset bytes what (integers little-endian)
====== ===== ============================================================================
0      8     magic: ``MQLARGE`` and a line feed
8      4     format version: 2 if it is encrypted, otherwise 1
12     4     bytes of a block, b
16     16    the body's id
32     32    salt
64     16    name of the operator's key with which it is encrypted; zeros: it is not
80     16    BLAKE2b-128 of bytes 0 to 80
96     b     the first block's bytes; the last block has from 1 to b
96+b   16    its tag: GMAC, keyed, of the block's bytes; or the tag of their encryption
...          the next block and its tag
====== ===== ============================================================================

The key comes of the salt, the nonce is the block's number and whether it is the last one: so a block that stands
elsewhere, in another file or where another block was last is damage.  Every file has a salt of its own and each
block is written once, so no nonce is used twice under one key.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final

import attrs
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from meshq.abc import Buffer
from meshq.errors import DamagedError, invariant
from meshq.ids import IDENTITY_BYTES
from meshq.limits import LARGE_BLOCK_BYTES
from meshq.store.formats._keyring_format import KEY_ID_BYTES, NO_KEY, Keyring
from meshq.store.formats._layout_format import ENCRYPTED_VERSION, PLAIN_VERSION, refuse_newer

MAGIC: Final = b"MQLARGE\n"
BODY_SUFFIX: Final = ".body"
PART_SUFFIX: Final = ".part"
SALT_BYTES: Final = 32
TAG_BYTES: Final = 16
_HEAD: Final = struct.Struct(f"<8sII{IDENTITY_BYTES}s{SALT_BYTES}s{KEY_ID_BYTES}s")
HEADER_BYTES: Final = _HEAD.size + TAG_BYTES

assert HEADER_BYTES == 96


@attrs.frozen
class LargeBodyHeader:
    """The fields of a body file's header: its first 96 bytes."""

    body_id: bytes
    salt: bytes = attrs.field(repr=False)
    block_bytes: int = LARGE_BLOCK_BYTES
    #: The name of the operator's key that encrypts the file; zeros: none.
    key_id: bytes = NO_KEY


def encode_large_header(header: LargeBodyHeader, *, version: int | None = None) -> bytes:
    """Encode the first 96 bytes of a file."""
    if version is None:
        version = PLAIN_VERSION if header.key_id == NO_KEY else ENCRYPTED_VERSION
    head = _HEAD.pack(MAGIC, version, header.block_bytes, header.body_id, header.salt, header.key_id)
    return head + blake2b(head, digest_size=TAG_BYTES).digest()


def decode_large_header(data: bytes, file: str) -> LargeBodyHeader:
    """Decode the first 96 bytes.

    Raises:
        DamagedError: the header is not what was written.
        SettingsError: the file is of a newer version.
    """
    if len(data) < HEADER_BYTES:
        raise DamagedError(file, 0, f"a header of {HEADER_BYTES} bytes", f"{len(data)} bytes")
    magic, version, block_bytes, body_id, salt, key_id = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise DamagedError(file, 0, f"the magic {MAGIC!r}", repr(magic))
    expected, found = blake2b(data[: _HEAD.size], digest_size=TAG_BYTES).digest(), data[_HEAD.size : HEADER_BYTES]
    if found != expected:
        raise DamagedError(file, _HEAD.size, f"checksum {expected.hex()}", found.hex())
    refuse_newer(file, version)
    if not block_bytes:
        raise DamagedError(file, 12, "blocks of a byte at least", "0")
    return LargeBodyHeader(body_id, salt, block_bytes, key_id)


def file_name(body_id: bytes, *, whole: bool) -> str:
    """Return the name of a body's file."""
    return body_id.hex() + (BODY_SUFFIX if whole else PART_SUFFIX)


def id_in_name(name: str) -> bytes | None:
    """Return the body's id in a file name; None for any other name."""
    digits, dot, suffix = name.rpartition(".")
    if dot + suffix not in (BODY_SUFFIX, PART_SUFFIX) or len(digits) != 2 * IDENTITY_BYTES:
        return None
    if any(digit not in "0123456789abcdef" for digit in digits):
        return None
    return bytes.fromhex(digits)


def block_count(size: int, block_bytes: int = LARGE_BLOCK_BYTES) -> int:
    """Return how many blocks a body of ``size`` bytes has."""
    return -(-size // block_bytes)


def file_bytes(size: int, block_bytes: int = LARGE_BLOCK_BYTES) -> int:
    """Return the length of the file of a body of ``size`` bytes."""
    return HEADER_BYTES + size + TAG_BYTES * block_count(size, block_bytes)


def block_offset(number: int, block_bytes: int = LARGE_BLOCK_BYTES) -> int:
    """Return the offset of a block in the file."""
    return HEADER_BYTES + number * (block_bytes + TAG_BYTES)


class BlockKeys:
    """The keys that seal and prove the blocks of one file, and encrypt them if the header says so."""

    __slots__ = ("_encrypted", "_gcm")

    def __init__(self, header: LargeBodyHeader, keyring: Keyring, file: str) -> None:
        secret = keyring.derive(header.key_id, header.salt, b"meshq large key", file)
        self._encrypted = secret is not None
        self._gcm = AESGCM(secret or blake2b(header.salt, digest_size=32, person=b"meshq large key").digest())

    def seal(self, number: int, block: Buffer, *, last: bool) -> list[Buffer]:
        """Return the bytes to be written for a block."""
        invariant(len(block) > 0, "a block has a byte at least")
        nonce = _nonce(number, last=last)
        if self._encrypted:
            return [self._gcm.encrypt(nonce, block, None)]
        return [block, self._gcm.encrypt(nonce, b"", block)]

    def open(self, number: int, sealed: bytes, *, last: bool) -> bytes | None:
        """Return the block that was sealed with this number; None if these bytes are no such block."""
        nonce, block = _nonce(number, last=last), sealed[:-TAG_BYTES]
        if not block:
            return None
        try:
            if self._encrypted:
                return self._gcm.decrypt(nonce, sealed, None)
            self._gcm.decrypt(nonce, sealed[-TAG_BYTES:], block)
        except InvalidTag:
            return None
        return block


def _nonce(number: int, *, last: bool) -> bytes:
    return (b"last" if last else b"more") + number.to_bytes(8, "little")
