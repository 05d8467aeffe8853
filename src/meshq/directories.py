"""Directories of the parts of a store, where these lie apart."""

from __future__ import annotations

from typing import Any, Final

import attrs

from meshq.errors import SettingsError

#: The parts of a store, by the names of their settings.
PARTS: Final = ("journal", "bindings", "paging", "large_messages")


#: The mode bit that lets every user write.
WRITABLE_BY_ALL: Final = 0o002


def why_exposed(directory: str, mode: int) -> str:
    """Return why the mode of a directory is unsafe for a store; empty: it is safe.

    Whoever may write to it can put files of their own in the place of the store's.
    """
    if mode & WRITABLE_BY_ALL:
        return f"everybody may write to {directory!r} (mode {mode:o}); allowed: chmod o-w"
    return ""


def _text(value: Any) -> Any:
    """The path of a ``os.PathLike``; a directory may end with a slash."""
    path = value.__fspath__() if hasattr(value, "__fspath__") else value
    return path.rstrip("/") or "/" if type(path) is str and path else path


def _is_directory(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (type(value) is not str or not value or "\0" in value):
        raise SettingsError(f"directories.{attribute.name}", value, "a directory, or None for one in data_dir")


@attrs.frozen(kw_only=True)
class StoreDirectories:
    """The directories of a store that are not in its ``data_dir``, for example on another disk; None: in ``data_dir``.

    ``journal``: the log of all that is durable, whose writes and syncs everything waits for.  ``bindings``: who the
    node is.  ``paging``: what memory has no room for; of no account to the next start.  ``large_messages``: bodies
    of large messages.

    Each belongs to one store alone, and is empty when that is begun.  Who moves a part later moves its files whole,
    while the broker is stopped, and says here where it is now.
    """

    journal: str | None = attrs.field(default=None, converter=_text, validator=_is_directory)
    bindings: str | None = attrs.field(default=None, converter=_text, validator=_is_directory)
    paging: str | None = attrs.field(default=None, converter=_text, validator=_is_directory)
    large_messages: str | None = attrs.field(default=None, converter=_text, validator=_is_directory)

    def __attrs_post_init__(self) -> None:
        seen: dict[str, str] = {}
        for part, path in self.outside.items():
            if path in seen:
                raise SettingsError(f"directories.{part}", path, f"another one than that of {seen[path]}")
            seen[path] = part

    @property
    def outside(self) -> dict[str, str]:
        """The parts that have a directory of their own, with these directories."""
        return {part: path for part in PARTS if (path := getattr(self, part)) is not None}
