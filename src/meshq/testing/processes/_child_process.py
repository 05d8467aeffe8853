"""A process that a test starts, which says when it is ready and ends with its test."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from meshq.errors import BrokenError

#: A process that is not ready so many seconds after its start is killed.
START_S: Final = 60.0
#: At the end of a test a process has so many seconds to stop cleanly; the rest is killed.
STOP_S: Final = 5.0
#: So much of what a process has written stands in an error.
SHOWN_CHARACTERS_MAX: Final = 2000


class ChildProcess:
    """A module that runs as a process, one life after the other.

    The module gets its settings as JSON, and answers each line that it reads by a line; the first one says that it is
    ready.  When nothing more can be read, it ends.
    """

    def __init__(self, name: str, log: Path, module: str, settings: Mapping[str, Any]) -> None:
        self.name: str = name
        #: Where the process writes its log.
        self.log: Path = log
        self._command = [sys.executable, "-m", module, json.dumps(settings)]
        self._process: subprocess.Popen[str] | None = None

    @property
    def running(self) -> bool:
        """Whether there is a process, paused or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Begin a life; the process is not ready yet."""
        with self.log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def started(self) -> None:
        """Wait until the process is ready.

        Raises:
            BrokenError: it has ended before, or was killed because it took too long.
        """
        assert self._process is not None
        watch = threading.Timer(START_S, self._process.kill)
        watch.start()
        try:
            self._answer()
        finally:
            watch.cancel()

    def ask(self) -> dict[str, Any]:
        """Return the answer to a line.

        Raises:
            BrokenError: the process has ended.
        """
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise BrokenError(f"the process of {self.name} has ended") from error
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            told = self.log.read_text(encoding="utf-8")[-SHOWN_CHARACTERS_MAX:]
            ended = EOFError(f"exit status {self._process.returncode}")
            raise BrokenError(f"the process of {self.name} has ended:\n{told}") from ended
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """End the process by SIGKILL, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._close()

    def stop(self) -> None:
        """Let the process stop cleanly; kill it if it does not in time."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._close()

    def _close(self) -> None:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process = None
