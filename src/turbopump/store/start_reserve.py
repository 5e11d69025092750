"""Reserve of disk space for the small files that a start writes on a full disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turbopump.disk.disk import Disk

START_RESERVE_MAX: Final = 4 * 1024 * 1024


@dataclass(slots=True, eq=False)
class StartReserve:
    """File that reserves disk space for the small files written at a start.

    Its size is ``START_RESERVE_MAX`` bytes, or 1 % of the file system if that is less. A broker
    that was killed on a full disk deletes the file, starts, and makes it again from the space that
    is left. Sends are refused until there is more space.
    """

    disk: Disk
    path: Path
    log_info: Callable[[str], None]
    _given_up: int = 0
    """Size in bytes of the reserve that this start has deleted."""
    _there: bool = False
    _making: bool = False

    def use_if_full(self) -> None:
        """Delete the reserve if the free disk space is smaller than the reserve.

        Call this at a start, before anything is written. Raises OSError.
        """
        size = self.disk.file_size(self.path)
        if size and self.disk.space(self.path.parent).free < size:
            self.disk.remove(self.path)
            self._given_up = size
            self.log_info(
                f"the disk is full: {self.path} is deleted to make space for the files of "
                "this start"
            )

    def make_missing(self) -> None:
        """Start to make the reserve in a thread if it is missing. Call this every few seconds.

        The reserve is made if ten times its size is free, or if this start has deleted it.
        """
        if not self._there and not self._making:
            self._making = True
            self.disk.start(self._make_file, self._note_made)

    def _make_file(self) -> None:
        if self.disk.file_size(self.path) is None:
            space = self.disk.space(self.path.parent)
            wanted = min(space.total // 100, START_RESERVE_MAX)
            sizes = [self._given_up * part // 8 for part in range(6, 0, -1)]
            for size in [wanted] if space.free >= 10 * wanted else sizes:
                try:
                    self.disk.create_segment(self.path, size).close()
                    break
                except (OSError, ValueError):  # no space left, or nothing allocated at all
                    continue
            else:
                return
        self._there = True

    def _note_made(self, _error: OSError | None) -> None:
        self._making = False
