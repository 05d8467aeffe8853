"""Loggers: the standard library's, silent until the program says otherwise."""

from __future__ import annotations

import logging


def logger(package: str) -> logging.Logger:
    """The logger of a package of meshq; nothing of it is printed unless the program has set up its logging."""
    root = logging.getLogger("meshq")
    if not root.handlers:
        root.addHandler(logging.NullHandler())
    return logging.getLogger(f"meshq.{package}")
