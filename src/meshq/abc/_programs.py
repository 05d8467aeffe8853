"""Other programs of this host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence


class Programs(ABC):
    """Runs other programs."""

    @abstractmethod
    async def run(self, command: Sequence[str]) -> int:
        """Run a command with its arguments, without a shell and without input; return its exit status.

        Checkpoint: always.
        Cancellation: the program is killed.
        Raises: OSError: there is no such program.
        """


class NoPrograms(Programs):
    """A host without other programs."""

    async def run(self, command: Sequence[str]) -> int:
        """Refuse.  Checkpoint: never.  Cancellation: not noticed.  Raises: OSError."""
        raise FileNotFoundError(f"no program can be run here: {command[0]}")
