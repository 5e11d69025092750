"""Progress of a pipeline, and its line on standard error.

A pipeline counts; how the line looks is decided here. Spark is unknown here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TextIO

TERMINAL_EVERY_S: Final = 0.2
FILE_EVERY_S: Final = 5.0


@dataclass
class RowProgress:
    """Progress of a pipeline: the numbers of done and remaining rows.

    ``shown`` is called on each change.
    """

    total: int = 0
    done: int = 0
    began: float = field(default_factory=time.monotonic)
    shown: Callable[[RowProgress], None] = lambda _progress: None

    def add(self, rows: int) -> None:
        self.done += rows
        self.shown(self)

    def expect(self, rows: int) -> None:
        """Set the number of remaining rows."""
        self.total = self.done + rows
        self.shown(self)

    @property
    def lag(self) -> int:
        """Number of remaining rows."""
        return max(0, self.total - self.done)

    @property
    def rate(self) -> float:
        """Rows per second since the beginning."""
        return self.done / max(time.monotonic() - self.began, 1e-9)

    def line(self) -> str:
        """Return the progress as a line such as ``120,000 rows 40,000/s lag 80,000 2 s left``."""
        text = f"{self.done:,} rows  {self.rate:,.0f}/s  lag {self.lag:,}"
        return (
            f"{text}  {_time_text(self.lag / self.rate)} left" if self.done and self.lag else text
        )


class ProgressLine:
    """Display of the progress of a pipeline on standard error.

    A terminal shows one line that changes. A file gets a new line every five seconds.
    """

    def __init__(self, label: str, out: TextIO = sys.stderr) -> None:
        self._label = label
        self._out = out
        self._terminal = out.isatty()
        self._last = time.monotonic() if not self._terminal else 0.0
        self._open = False

    def __call__(self, progress: RowProgress) -> None:
        now = time.monotonic()
        if now - self._last < (TERMINAL_EVERY_S if self._terminal else FILE_EVERY_S):
            return
        self._last = now
        self._open = self._terminal
        line = f"{self._label}: {progress.line()}\n"
        if self._terminal:
            line = "\r\033[K" + line.rstrip("\n")
        print(line, end="", file=self._out, flush=True)

    def close(self) -> None:
        """Remove the progress line from a terminal. Other output can then follow."""
        if self._open:
            print("\r\033[K", end="", file=self._out, flush=True)


def _time_text(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
