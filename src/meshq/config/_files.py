"""Files with secrets that a configuration names.

A secret that others may change is not one: as ssh does with its keys, it is refused and not only warned of.
"""

from __future__ import annotations

import os
import stat
from typing import Final

#: Far more than any secret has.
SECRET_FILE_BYTES_MAX: Final = 64 * 1024


def read_secret(name: str) -> str:
    """The text of a file with a secret.

    Raises:
        OSError: it can't be read.
        ValueError: it is no such file, or is not what a secret may stand in; says why.
    """
    # What is no file may never give an end, or never begin.
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no regular file")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError(f"others may write to it (mode {stat.S_IMODE(found.st_mode):o}); allowed: chmod go-w")
        data = b"".join(iter(lambda: os.read(descriptor, SECRET_FILE_BYTES_MAX), b"")) if _short(found) else b""
    finally:
        os.close(descriptor)
    if not _short(found):
        raise ValueError(f"it has more than {SECRET_FILE_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        # What is in it is not shown.
        raise ValueError("it is no text") from None


def _short(found: os.stat_result) -> bool:
    return found.st_size <= SECRET_FILE_BYTES_MAX


def secret_in(name: str) -> str:
    """The secret in a file: its text, without the end of its last line.

    Raises:
        ValueError: it can't be read; says which file and why.
    """
    if "\0" in name:
        raise ValueError(f"{name!r} can't be read: no file has such a name")
    try:
        return read_secret(name).removesuffix("\n")
    except OSError as error:
        reason: object = error.strerror
    except UnicodeEncodeError:
        name, reason = repr(name), "no file has such a name"
    except ValueError as error:
        reason = error
    raise ValueError(f"{name} can't be read: {reason}")
