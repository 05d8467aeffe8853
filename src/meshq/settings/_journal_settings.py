"""The settings of a broker's journal."""

from __future__ import annotations

import attrs

from meshq import limits
from meshq.settings._secrets import EncryptionKey, encryption_keys
from meshq.settings._validators import in_range


@attrs.frozen(kw_only=True)
class JournalSettings:
    """The settings of a broker's journal.

    ``segment_bytes``: the size of its files.
    ``encryption_keys``: with the first one everything that is written from now on is encrypted; all of them read.
    """

    segment_bytes: int = attrs.field(
        default=limits.SEGMENT_BYTES,
        validator=in_range(limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX, whole=True),
    )
    encryption_keys: tuple[EncryptionKey, ...] = attrs.field(default=(), converter=encryption_keys)
