"""The file in which a host remembers a backup that has a store of its own: JSON with a checksum."""

from __future__ import annotations

import json
import zlib
from typing import Final

import attrs

from meshq.errors import DamagedError

NAME: Final = "hosted"
BYTES_MAX: Final = 64 * 1024


@attrs.frozen(kw_only=True)
class KeptBackup:
    """A backup that a host remembers.

    ``number``: of its name, and of its directory.  ``place``: by how many offsets its ports are higher than those of
    its host.  ``request``: that of its node, packed.
    """

    number: int
    place: int
    request: bytes

    def encode(self) -> bytes:
        """Return the bytes of the file; the number is in the name of the directory."""
        body = json.dumps({"place": self.place, "request": self.request.hex()}, sort_keys=True).encode()
        return b"%08x\n" % zlib.crc32(body) + body

    @classmethod
    def decode(cls, number: int, data: bytes, file: str) -> KeptBackup:
        """Read the file.  Raises: DamagedError."""
        check, _, body = data.partition(b"\n")
        try:
            if int(check, 16) != zlib.crc32(body):
                raise ValueError("another checksum")
            found = json.loads(body)
            place, request = found["place"], bytes.fromhex(found["request"])
            if type(place) is not int or place < 1:
                raise ValueError("no place")
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(file, 0, "what a host remembers of a backup", "other bytes") from error
        return cls(number=number, place=place, request=request)
