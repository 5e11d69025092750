"""Opening of a broker's store, and the log lines of its recovery."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from turbopump.clock import Clock
from turbopump.disk.disk import Disk
from turbopump.store.message_store import MessageStore
from turbopump.store.recovery.recovery import RecoveryReport
from turbopump.store.store_config import StoreConfig

log = logging.getLogger(__name__)

DAMAGES_LOGGED: Final = 100
"""Maximum number of damaged ranges that are logged at the start. The others are only counted."""


def open_store(
    settings: StoreConfig,
    disk: Disk,
    clock: Clock,
    is_batch: Callable[[str], bool | None],
    on_slow_append: Callable[[float], None],
) -> MessageStore:
    """Open the store of a broker and recover it after a crash.

    Raises the errors of ``MessageStore.open``.
    """
    store = MessageStore.open(
        settings,
        disk,
        clock,
        log_error,
        RecoveryProgress(clock.monotonic).reached,
        is_batch,
        log_info=log_info,
        on_slow_append=on_slow_append,
    )
    assert store.recovery is not None
    _report(settings.paths.root, store.recovery)
    return store


def _report(directory: Path, report: RecoveryReport) -> None:
    log.info(
        "store opened directory=%s clean=%s begun_at=%d log_end=%d entries=%d rebuilt=%s torn=%s "
        "damaged_ranges=%d",
        directory,
        report.clean,
        report.begun_at,
        report.log_end,
        report.entries,
        report.rebuilt,
        report.torn,
        len(report.damages),
    )
    if report.compared is not None:
        log.warning(
            "where the queues ended was not noted: the log before %d was read too and compared "
            "with them",
            report.compared,
        )
    for damage in report.damages[:DAMAGES_LOGGED]:
        log.error(
            "damaged range of the commit log set apart start=%d end=%d cause=%s",
            damage.start,
            damage.end,
            damage.fault,
        )


def log_error(text: str) -> None:
    """Log an error that the store or one of its tables has reported."""
    log.error("store: %s", text)


def log_info(text: str) -> None:
    log.info("store: %s", text)


LOGGER: Final = "turbopump.broker.recovery_progress"
"""Name of the logger for the progress of a recovery. The command line shows its lines on standard
error, even if other lines go elsewhere."""
recovery_log = logging.getLogger(LOGGER)

FIRST_LINE_S: Final = 1.0
LINE_EVERY_S: Final = 3.0


class RecoveryProgress:
    """Logger of the progress of a long recovery, during which the broker serves no client.

    A recovery of under a second logs nothing. ``reached`` is passed to ``MessageStore.open``.
    ``now`` returns the time in monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._begin: int | None = None
        self._begun = self._next_line = 0.0
        self._said = False

    def reached(self, offset: int, end: int) -> None:
        """Record that the recovery has read the log up to ``offset``, and will end at about
        ``end``.

        The first call gives the offset at which the recovery starts.
        """
        now = self._now()
        begin = self._begin
        if begin is None or offset <= begin:  # it may begin anew
            self._begin = offset
            self._begun = now
            self._next_line = now + FIRST_LINE_S
            return
        size = offset - begin
        seconds = now - self._begun
        if offset == end:
            if self._said:
                recovery_log.info(
                    "store recovered MiB=%d seconds=%.1f MB/s=%.0f",
                    size >> 20,
                    seconds,
                    size / seconds / 1e6,
                )
            self._said = False
        elif now >= self._next_line:
            self._said = True
            self._next_line = now + LINE_EVERY_S
            recovery_log.info(
                "recovering the store percent=%d MiB=%d of=%d MB/s=%.0f seconds_left=%.0f",
                100 * size // (end - begin),
                size >> 20,
                (end - begin) >> 20,
                size / seconds / 1e6,
                (end - offset) * seconds / size,
            )
