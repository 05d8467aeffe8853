"""Programs of the operating system."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import trio

from meshq.abc import Programs


class SystemPrograms(Programs):
    """The programs of this host."""

    __slots__ = ()

    async def run(self, command: Sequence[str]) -> int:
        """Run a command, and drop its output."""
        nowhere = subprocess.DEVNULL
        done = await trio.run_process(list(command), stdin=nowhere, stdout=nowhere, stderr=nowhere, check=False)
        return done.returncode
