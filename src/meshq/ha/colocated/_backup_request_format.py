"""The request for a backup, as one node sends it to another one."""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any, Final

import attrs

from meshq.address import check_name
from meshq.errors import RefusedError, SettingsError

#: Bytes of a request: it goes in the header of one frame.
REQUEST_BYTES_MAX: Final = 3_000
#: Bytes of it once it is unpacked.
TEXT_BYTES_MAX: Final = 65_536
PATH_CHARACTERS_MAX: Final = 4_096
_ALLOWED: Final = "a request for a backup"


def _text(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if type(value) is not str or len(value) > PATH_CHARACTERS_MAX or "\0" in value:
        raise SettingsError(attribute.name, str(value)[:64], f"a text of {PATH_CHARACTERS_MAX:,} characters at most")


def _name(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    # It stands in logs.
    check_name(attribute.name, value)


def _name_or_none(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None:
        _name(instance, attribute, value)


def _flag(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if type(value) is not bool:
        raise SettingsError(attribute.name, str(value)[:64], "True or False")


def _table(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if type(value) is not dict:
        raise SettingsError(attribute.name, str(value)[:64], "settings by their names")


@attrs.frozen(kw_only=True)
class BackupRequest:
    """A request of a node for a backup, with the settings that the backup is to have.

    ``name``, ``node_id`` (hexadecimal) and ``url`` of the node.  ``kind``: of its policy.  ``group_name``: of its
    policy; None: any.  ``data_dir``: the directory to share; empty: each node has its own.  ``users``: a digest of who
    may do what at it; empty: everybody everything.  ``encrypted``: its store is.  ``settings``: those that its backup
    is to have, too, by the keywords of ``Broker``; ``address_settings``: by pattern those that were written out.
    """

    name: str = attrs.field(validator=_name)
    node_id: str = attrs.field(validator=_text)
    url: str = attrs.field(validator=_text)
    kind: str = attrs.field(validator=_text)
    group_name: str | None = attrs.field(default=None, validator=_name_or_none)
    data_dir: str = attrs.field(default="", validator=_text)
    users: str = attrs.field(default="", validator=_text)
    encrypted: bool = attrs.field(default=False, validator=_flag)
    settings: dict[str, Any] = attrs.field(factory=dict, validator=_table)
    address_settings: dict[str, Any] = attrs.field(factory=dict, validator=_table)

    @property
    def digest(self) -> str:
        """A digest of the whole request: another one asks for another backup."""
        return hashlib.sha256(self._text()).hexdigest()

    def _text(self) -> bytes:
        return json.dumps(attrs.asdict(self), separators=(",", ":"), sort_keys=True).encode()

    def encode(self) -> bytes:
        """Return the bytes of the request.

        Raises:
            SettingsError: it is too large to be sent.
        """
        text = self._text()
        packed = zlib.compress(text, 9)
        if len(packed) > REQUEST_BYTES_MAX or len(text) > TEXT_BYTES_MAX:
            allowed = f"settings that fit into {REQUEST_BYTES_MAX:,} bytes once compressed, for a node with a backup"
            raise SettingsError("address_settings", f"{len(packed):,} bytes", allowed)
        return packed

    @classmethod
    def decode(cls, packed: bytes) -> BackupRequest:
        """Read the bytes of a request.

        Raises:
            SettingsError: they are none, or a part of it is not allowed.
            RefusedError: it says what this version does not know.
        """
        if len(packed) > REQUEST_BYTES_MAX:
            raise SettingsError("request", f"{len(packed):,} bytes", f"{REQUEST_BYTES_MAX:,} bytes at most")
        unpacking = zlib.decompressobj()
        try:
            text = unpacking.decompress(packed, TEXT_BYTES_MAX + 1)
            if len(text) > TEXT_BYTES_MAX or not unpacking.eof or unpacking.unused_data:
                raise SettingsError("request", "***", f"{TEXT_BYTES_MAX:,} bytes at most, once unpacked")
            given = json.loads(text)
        except (zlib.error, ValueError, RecursionError) as error:
            raise SettingsError("request", "***", _ALLOWED) from error
        if type(given) is not dict:
            raise SettingsError("request", "***", _ALLOWED)
        known = {one.name: one.default is attrs.NOTHING for one in attrs.fields(cls)}
        strange = [name for name in given if name not in known]
        if strange:
            raise RefusedError(f"the node asks for a backup by a newer version: {strange[0][:64]!r} is not known here")
        missing = [name for name, required in known.items() if required and name not in given]
        if missing:
            raise SettingsError("request", "***", f"{_ALLOWED}, with its {missing[0]!r}")
        return cls(**given)
