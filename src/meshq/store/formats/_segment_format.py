"""The header of a segment, and the keys that are derived from its salt.

The first 4 KiB of a segment.  Magic, version and checksum have the same places in every format version.

====== ===== =======================================================================
offset bytes what (integers little-endian)
====== ===== =======================================================================
0      8     magic ``meshqseg``
8      4     format version: 2 if it is encrypted, otherwise 1
12     4     zero
16     8     segment number
24     8     base: the position of the first record
32     8     epoch under which it was begun
40     16    node id
56     16    journal id
72     32    salt, random
104    16    name of the operator's key with which it is encrypted; zeros: it is not
120    3960  zeros
4080   16    BLAKE2b-128 of all before
====== ===== =======================================================================

Two values are derived from the salt.  The *mark* begins every batch, so that a search through damaged bytes runs at
the speed of ``bytes.find``.  The *key* makes the tags: bytes that were made without the segment's salt can't pass
for a batch, and no salt is ever sent anywhere.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final

import attrs
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from meshq.abc import Buffer
from meshq.errors import DamagedError
from meshq.limits import SEGMENT_HEADER_BYTES
from meshq.store.formats._keyring_format import KEY_ID_BYTES, NO_KEY, Keyring
from meshq.store.formats._layout_format import ENCRYPTED_VERSION, PLAIN_VERSION, refuse_newer

MAGIC: Final = b"meshqseg"
SALT_BYTES: Final = 32
MARK_BYTES: Final = 8
TAG_BYTES: Final = 16
_HEAD: Final = struct.Struct(f"<8sIIQQQ16s16s32s{KEY_ID_BYTES}s")
_BODY_BYTES: Final = SEGMENT_HEADER_BYTES - TAG_BYTES


@attrs.frozen(kw_only=True)
class SegmentHeader:
    """The fields of a segment's header: its first 4 KiB."""

    number: int
    base: int
    epoch: int
    node_id: bytes
    journal_id: bytes
    salt: bytes = attrs.field(repr=False)
    #: The name of the operator's key that encrypts the segment; zeros: none.
    key_id: bytes = NO_KEY


def encode_header(header: SegmentHeader, *, version: int | None = None) -> bytes:
    """Encode the first 4 KiB of a segment."""
    if version is None:
        version = PLAIN_VERSION if header.key_id == NO_KEY else ENCRYPTED_VERSION
    head = _HEAD.pack(
        MAGIC,
        version,
        0,
        header.number,
        header.base,
        header.epoch,
        header.node_id,
        header.journal_id,
        header.salt,
        header.key_id,
    ).ljust(_BODY_BYTES, b"\0")
    return head + blake2b(head, digest_size=TAG_BYTES).digest()


def decode_header(data: bytes, file: str) -> SegmentHeader:
    """Decode the first 4 KiB of a segment.

    Raises:
        DamagedError: the header is not what was written.
        SettingsError: the segment is of a newer version.
    """
    if len(data) < SEGMENT_HEADER_BYTES:
        raise DamagedError(file, 0, f"a header of {SEGMENT_HEADER_BYTES} bytes", f"{len(data)} bytes")
    magic, version, _, number, base, epoch, node_id, journal_id, salt, key_id = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise DamagedError(file, 0, f"the magic {MAGIC!r}", repr(magic))
    expected = blake2b(memoryview(data)[:_BODY_BYTES], digest_size=TAG_BYTES).digest()
    found = data[_BODY_BYTES:SEGMENT_HEADER_BYTES]
    if found != expected:
        raise DamagedError(file, _BODY_BYTES, f"checksum {expected.hex()}", found.hex())
    refuse_newer(file, version)
    return SegmentHeader(
        number=number, base=base, epoch=epoch, node_id=node_id, journal_id=journal_id, salt=salt, key_id=key_id
    )


#: The keyring of unencrypted stores.
NO_KEYS: Final = Keyring()


class SegmentKeys:
    """The keys that seal and prove the batches of one segment.

    A nonce is a purpose and a batch number.  A segment is written by one life of a node only and never continued
    by another, so no nonce is used twice under one key.
    """

    __slots__ = ("_gcm", "encrypted", "genesis", "mark")

    def __init__(self, header: SegmentHeader, keyring: Keyring = NO_KEYS, file: str = "a segment") -> None:
        secret = keyring.derive(header.key_id, header.salt, b"meshq segment key", file)
        #: The bodies of batches are encrypted.  Their tags prove the bytes in either case.
        self.encrypted = secret is not None
        self._gcm = AESGCM(secret or blake2b(header.salt, digest_size=32, person=b"meshq batch key").digest())
        #: The first bytes of every batch.
        self.mark = blake2b(header.salt, digest_size=MARK_BYTES, person=b"meshq batch mark").digest()
        #: The predecessor's tag of the first batch: a hash of this header.
        self.genesis = blake2b(encode_header(header), digest_size=TAG_BYTES, person=b"meshq genesis").digest()

    def check(self, number: int, fields: Buffer) -> bytes:
        """Return the check of the header fields of batch ``number``."""
        return self._gcm.encrypt(b"head" + number.to_bytes(8, "little"), b"", fields)

    def tag(self, number: int, batch: Buffer) -> bytes:
        """Return the tag of batch ``number``, over all its bytes before the tag."""
        return self._gcm.encrypt(_body_nonce(number), b"", batch)

    def encrypt(self, number: int, head: Buffer, body: Buffer) -> bytes:
        """Encrypt the body of batch ``number``; the tag of head and body follows it."""
        return self._gcm.encrypt(_body_nonce(number), body, head)

    def decrypt(self, number: int, head: Buffer, body: Buffer) -> bytes | None:
        """Decrypt the body of a batch; None if head or body is not what was written."""
        try:
            return self._gcm.decrypt(_body_nonce(number), body, head)
        except InvalidTag:
            return None


def index_key(header: SegmentHeader, keyring: Keyring, salt: bytes, file: str) -> tuple[bytes, bool]:
    """Return the key of the segment's index with this salt, and whether that index is encrypted.

    An index may be written again, with other bytes: so each index has a key of its own.
    """
    secret = keyring.derive(header.key_id, header.salt + salt, b"meshq index key", file)
    if secret is not None:
        return secret, True
    return blake2b(header.salt + salt, digest_size=32, person=b"meshq index key").digest(), False


def _body_nonce(number: int) -> bytes:
    return b"body" + number.to_bytes(8, "little")
