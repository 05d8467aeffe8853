"""The failure of a command."""

from __future__ import annotations


class FailedError(Exception):
    """A command has failed; the text says why."""
