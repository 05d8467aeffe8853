"""Secrets: passwords and keys, which are never printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from meshq import limits
from meshq.errors import SettingsError


class Secret:
    """A password, printed, formatted and logged as ``***``; only ``reveal()`` returns the text."""

    __slots__ = ("_text",)

    def __init__(self, text: str | Secret) -> None:
        if isinstance(text, Secret):
            text = text.reveal()
        if type(text) is not str or not text or not fits(text, limits.PASSWORD_BYTES_MAX):
            allowed = f"a text of 1 to {limits.PASSWORD_BYTES_MAX} bytes in UTF-8"
            raise SettingsError("password", "***", allowed)
        self._text: str = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not pickled: it would be written somewhere as it is")


class EncryptionKey:
    """A key of 32 random bytes, given as bytes or as 64 hexadecimal digits, and printed as ``***``."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes | str | Secret | EncryptionKey) -> None:
        if isinstance(key, (EncryptionKey, Secret)):
            key = key.reveal()
        if isinstance(key, str):
            try:
                key = bytes.fromhex(key)
            except ValueError:
                key = b""
        if type(key) is not bytes or len(key) != limits.ENCRYPTION_KEY_BYTES:
            allowed = f"{limits.ENCRYPTION_KEY_BYTES} bytes, or twice as many hexadecimal digits"
            raise SettingsError("encryption_keys", "***", allowed)
        self._key: bytes = key

    def reveal(self) -> bytes:
        """The key itself."""
        return self._key

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EncryptionKey) and self._key == other._key

    def __hash__(self) -> int:
        return hash((EncryptionKey, self._key))

    def __reduce__(self) -> NoReturn:
        raise TypeError("an EncryptionKey is not pickled: it would be written somewhere as it is")


def encryption_keys(keys: object) -> tuple[EncryptionKey, ...]:
    """Convert the given keys to ``EncryptionKey`` objects.

    Raises:
        SettingsError: one of them is none, or they are too many or the same.
    """
    if isinstance(keys, (str, bytes, EncryptionKey)) or not isinstance(keys, Sequence):
        raise SettingsError("encryption_keys", "***", "a list of keys")
    found = tuple(EncryptionKey(key) for key in keys)
    if len(found) > limits.ENCRYPTION_KEYS_MAX or len(set(found)) < len(found):
        allowed = f"at most {limits.ENCRYPTION_KEYS_MAX} different keys"
        raise SettingsError("encryption_keys", None, allowed, shown=f"<{len(found)} keys>")
    return found


def fits(text: str, most: int) -> bool:
    """Whether a text can be encoded, in so many bytes at most."""
    try:
        return len(text.encode()) <= most
    except UnicodeEncodeError:
        return False
