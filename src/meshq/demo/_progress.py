"""The progress display of the demo, on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Final, Self, TextIO

from meshq.demo._flights import missing_extra

#: A plain line each time so many percent more are delivered.
LINE_PERCENT: Final = 10
#: The bar is drawn again when so many more of a thousand are done.
BAR_PERMILLE: Final = 5


class ProgressView(ABC):
    """Shows how far the run is."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Take the view away."""

    @property
    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._began:5.1f} s"

    @abstractmethod
    def say(self, text: str) -> None:
        """Print an event."""

    @abstractmethod
    def total(self, rows: int) -> None:
        """Set the total number of rows."""

    @abstractmethod
    def show(self, confirmed: int, delivered: int) -> None:
        """Show the numbers of confirmed and of delivered rows."""


class PlainProgress(ProgressView):
    """Plain lines."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out
        self._rows = 0
        self._next = 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        pass

    def say(self, text: str) -> None:
        print(f"{self._elapsed}  {text}", file=self._out, flush=True)

    def total(self, rows: int) -> None:
        self._rows = rows
        self._next = -(-rows * LINE_PERCENT // 100)

    def show(self, confirmed: int, delivered: int) -> None:
        if self._rows and delivered >= self._next:
            self.say(f"{confirmed:,} of {self._rows:,} flights confirmed, {delivered:,} delivered")
            step = -(-self._rows * LINE_PERCENT // 100)
            following = (delivered // step + 1) * step
            # The last step is shorter where the rows can't be divided; after it nothing comes.
            self._next = min(following, self._rows) if delivered < self._rows else following


class BarProgress(ProgressView):
    """Two bars on a terminal."""

    def __init__(self, out: TextIO) -> None:
        """Raises: UsageError: rich isn't installed."""
        super().__init__()
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        except ModuleNotFoundError as error:
            raise missing_extra("rich") from error
        columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
        # No thread of its own draws it: we know when something has changed.
        self._progress = Progress(*columns, console=Console(file=out), auto_refresh=False)
        self._confirmed = self._progress.add_task("confirmed", total=None)
        self._delivered = self._progress.add_task("delivered", total=None)
        self._rows = 0
        self._drawn = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._progress.console.print(f"{self._elapsed}  {text}", markup=False, highlight=False)
        self._progress.refresh()

    def total(self, rows: int) -> None:
        self._rows = rows
        for task in (self._confirmed, self._delivered):
            self._progress.update(task, total=rows)
        self._progress.refresh()

    def show(self, confirmed: int, delivered: int) -> None:
        done = (confirmed + delivered) * 1000
        if done - self._drawn < BAR_PERMILLE * self._rows and done < 2000 * self._rows:
            return
        self._drawn = done
        self._progress.update(self._confirmed, completed=confirmed)
        self._progress.update(self._delivered, completed=delivered)
        self._progress.refresh()


def progress_view(out: TextIO | None = None) -> ProgressView:
    """The view that fits standard error.

    Raises:
        UsageError: it is a terminal, and what draws the bar isn't installed.
    """
    out = sys.stderr if out is None else out
    return BarProgress(out) if out.isatty() else PlainProgress(out)
