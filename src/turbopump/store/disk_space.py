"""Levels of disk use at which old files are deleted and sends are refused. The file systems of log,
queues and indexes count.

::

    used > diskMaxUsedSpaceRatio 75 %         files older than fileReservedTime go, at any hour
         > diskSpaceCleanForciblyRatio 85 %   no new file in this root of the log while another root
                                              has space; with cleanFileForciblyEnable the oldest
                                              files go, at any age
         > diskSpaceWarningLevelRatio 90 %    sends are refused until it is at most 85 % again; the
                                              broker's own appends continue, because undelivered
                                              messages hold segments

Of several roots of the log the least used one counts. With ``free_min`` the three levels are 2.5,
1.5 and 1 times that many free bytes, the same relation as 25, 15 and 10 %. Sends are also refused
while a new file finds no space. Source: apache/rocketmq ``CleanCommitLogService.isSpaceToDelete``,
``HookUtils.checkBeforePutMessage`` (there the broker's own appends are refused like sends). Levels
are computed from numbers here; the numbers are read beside the owner's thread, because a disk that
hangs does not answer. The deleted files are unknown here.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final

from turbopump.disk.disk import Disk, Space
from turbopump.errors import StoreClosedError

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
RESERVE_MAX: Final = 16 * 1024 * 1024
"""Space in bytes that new files of the broker's own appends leave free while sends are refused.
Offsets and other small files need it. At most 1 % of the file system."""


def descriptor_advice(error: OSError) -> str | None:
    """Return advice for an error that reports a lack of file descriptors. Return None for any other
    error."""
    if error.errno not in _NO_DESCRIPTOR:
        return None
    return "raise the limit of open files (ulimit -n), or let fewer clients connect"


class SpaceLevel(IntEnum):
    """Level of urgency at which disk space must be freed."""

    NORMAL = 0
    CLEAN = 1
    CLEAN_FORCIBLY = 2
    FULL = 3


@dataclass(frozen=True, slots=True)
class SpaceLimits:
    """Limits of disk use at which files are deleted and sends are refused.

    The limits are percentages of a file system in use. If ``free_min`` is not 0, it replaces them:
    it is the number of bytes that must stay free. Percentages out of bounds become the nearest
    bound (10 to 95, 30 to 85, 35 to 90), as in Apache's broker.
    """

    used_max: int = 75
    clean_forcibly: int = 85
    warning: int = 90
    free_min: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("used_max", 10, 95),
            ("clean_forcibly", 30, 85),
            ("warning", 35, 90),
        ):
            object.__setattr__(self, name, min(max(getattr(self, name), low), high))

    def level_of(self, space: Space) -> SpaceLevel:
        if self.free_min:
            bounds = (self.free_min, self.free_min * 3 // 2, self.free_min * 5 // 2)
            return SpaceLevel(sum(space.free < bound for bound in bounds))
        used = space.used_percent
        if used > self.warning:
            return SpaceLevel.FULL
        if used > self.clean_forcibly:
            return SpaceLevel.CLEAN_FORCIBLY
        return SpaceLevel.CLEAN if used > self.used_max else SpaceLevel.NORMAL

    def describe_limit(self) -> str:
        """Return a text with the exceeded limit, and with the level at which sends are accepted
        again."""
        if self.free_min:
            return (
                f"it had less than diskFreeSpaceMin={self.free_min}, and sends are "
                f"accepted again from {self.free_min * 3 // 2} on"
            )
        end = min(self.clean_forcibly, self.warning)
        return (
            f"it was beyond diskSpaceWarningLevelRatio={self.warning} %, and sends are "
            f"accepted again from {end} % on (diskSpaceCleanForciblyRatio)"
        )


@dataclass(eq=False)
class SpaceWatch:
    """Watches the free disk space of a store, and decides when sends are refused.

    - ``refusal``: reason why messages are refused, or None.
    - ``level``: urgency of a lack of space.
    - ``full_roots``: directories of the log in which no new file should be made.
    - ``figures``: last known space of each directory.
    - ``log_error``: gets a line when sends begin to be refused, and when the system does not
      report the space.
    - ``log_info``: gets a line when sends are accepted again.
    - ``forcibly``: True if the oldest files are deleted while space is short. The refusal then
      does not advise it.

    The owner must call ``check_space`` periodically.
    """

    disk: Disk
    log_roots: Sequence[Path]
    others: Sequence[Path]
    limits: SpaceLimits
    log_error: Callable[[str], None]
    log_info: Callable[[str], None]
    forcibly: bool = True
    level: SpaceLevel = SpaceLevel.NORMAL
    refusal: str | None = None
    full_roots: frozenset[Path] = frozenset()
    figures: dict[Path, Space] = field(default_factory=dict)
    _full: Path | None = None
    _lacking: tuple[Path, int, str] | None = None
    _busy: bool = False
    _silent: str | None = None
    _reported: bool = False
    """True if a line was logged since the last ``check_space`` for a file that found no space."""

    def check_space(self, then: Callable[[], None] = lambda: None) -> None:
        """Read the free disk space in a thread, update the levels, and then call ``then``.

        While an earlier read is still running, the call does nothing, and ``then`` is not called.
        """
        self._reported = False
        if self._busy:
            return
        self._busy = True
        paths = [*self.log_roots, *self.others]
        if self._lacking is not None:
            paths.append(self._lacking[0])
        found: dict[Path, Space] = {}

        def ask() -> None:
            failure: OSError | None = None
            for path in paths:
                try:
                    found[path] = self._space(path)
                except OSError as error:
                    failure = failure or error
            if failure is not None:
                raise failure

        def done(error: OSError | None) -> None:
            self._busy = False
            silent = str(error) if error is not None else None
            if silent is not None and silent != self._silent:
                self.log_error(f"the free space cannot be read: {silent}")
            self._silent = silent
            self.update_levels(found)
            then()

        self.disk.start(ask, done)

    def _space(self, path: Path) -> Space:
        """Return the space on the file system of a directory, or of its nearest existing parent."""
        try:
            return self.disk.space(path)
        except FileNotFoundError:
            if path == path.parent:
                raise
            return self._space(path.parent)

    def update_levels(self, figures: dict[Path, Space]) -> None:
        """Update ``level``, ``refusal`` and ``full_roots`` from these figures.

        A directory without a new figure keeps its last one.
        """
        self.figures.update(figures)
        limits, known = self.limits, self.figures
        levels = {path: limits.level_of(space) for path, space in known.items()}
        roots = [path for path in self.log_roots if path in levels]
        self.full_roots = frozenset(
            path for path in roots if levels[path] >= SpaceLevel.CLEAN_FORCIBLY
        )
        pressed = (
            [min(roots, key=lambda path: (levels[path], known[path].used_percent))] if roots else []
        )
        pressed.extend(path for path in self.others if path in levels)
        if pressed:
            worst = max(pressed, key=lambda path: levels[path])
            self.level = levels[worst]
            if self.level is SpaceLevel.FULL or (
                self._full is not None and self.level is SpaceLevel.CLEAN_FORCIBLY
            ):
                self._full = worst
            else:
                self._full = None
        if self._lacking is not None:
            lacking, size, _ = self._lacking
            possible = self.log_roots if lacking in self.log_roots else (lacking,)
            if any(path in figures and figures[path].free >= size for path in possible):
                self._lacking = None  # the next send tries
        self._update_refusal()

    def no_room(self, error: OSError, path: Path, size: int) -> Exception:
        """Return the error to raise when a file in ``path`` could not get ``size`` more bytes.

        If the disk is full, sends are refused until ``check_space`` finds enough space.
        """
        if error.errno not in NO_ROOM:
            if not self._reported:
                self._reported = True
                advice = descriptor_advice(error)
                self.log_error(
                    (
                        f"a send is refused, because a file in {path} cannot be made or "
                        f"opened ({error.strerror or error})"
                    )
                    + (f": {advice}" if advice else "")
                )
            return error
        self._lacking = (path, size, error.strerror or str(error))
        self._update_refusal()
        refusal = StoreClosedError(self.refusal)
        self.check_space()
        return refusal

    def has_room_beside_reserve(self, log_size: int, queue_size: int) -> bool:
        """Return True if writing these numbers of bytes leaves the reserve of disk space free.

        The last known figures decide. Pass 0 for bytes in allocated blocks, which need no space.
        Queues grow by small steps and may use half of the reserve: deliveries that find no space in
        them would stop all deletion.
        """
        roots = [space for path in self.log_roots if (space := self.figures.get(path)) is not None]
        queues = self.figures.get(self.others[0]) if self.others else None
        fits_log = (
            not log_size or not roots or any(_leaves_reserve(space, log_size) for space in roots)
        )
        return fits_log and (
            not queue_size or queues is None or _leaves_reserve(queues, queue_size, share=2)
        )

    def _update_refusal(self) -> None:
        before = self.refusal
        if self._lacking is not None:
            path, size, why = self._lacking
            self.refusal = (
                f"no space for {size} bytes in {path} "
                f"({why}{_measured(self.figures.get(path))}): free some; sends are "
                "accepted again without a restart"
            )
        elif self._full is not None:
            space = self.figures[self._full]
            self.refusal = (
                f"the disk of {self._full} is full: {space.used_percent} % used, {space.free} of "
                f"{space.total} bytes free; "
                f"{self.limits.describe_limit()}: {self._advice()}"
            )
        else:
            self.refusal = None
        if before is None and self.refusal is not None:
            self.log_error(f"sends are refused: {self.refusal}")
        elif before is not None and self.refusal is None:
            self.log_info("there is enough space again: sends are accepted")

    def _advice(self) -> str:
        if self.forcibly:
            return (
                "free some space there; the oldest messages are being deleted already "
                "(cleanFileForciblyEnable=true)"
            )
        return (
            "free some space there, keep messages for less time (fileReservedTime), or "
            "allow the deletion of the oldest at any age (cleanFileForciblyEnable)"
        )


def _leaves_reserve(space: Space, size: int, *, share: int = 1) -> bool:
    return space.free - size >= min(space.total // 100, RESERVE_MAX) // share


def _measured(space: Space | None) -> str:
    return (
        f"; {space.used_percent} % used, {space.free} of {space.total} bytes free"
        if space is not None
        else ""
    )


def with_free_bytes(error: OSError, disk: Disk) -> OSError:
    """Return the error of a failed write. If the disk was full, the text of the error also gives
    the free space."""
    if error.errno not in NO_ROOM or error.filename is None:
        return error
    try:
        space = disk.space(Path(error.filename).parent)
    except OSError:
        return error
    text = (
        f"{error.strerror}, {space.free} of {space.total} bytes free: free some there, "
        "because a start needs space for small files"
    )
    return OSError(error.errno, text, error.filename)
