"""Opening of a broker's store, with log lines about the recovery."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from turbopump.broker.recovery_progress import RecoveryProgress
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
    recovery: RecoveryProgress,
) -> MessageStore:
    """Open the store of a broker and recover it after a crash.

    Raises the errors of ``MessageStore.open``.
    """
    store = MessageStore.open(
        settings,
        disk,
        clock,
        log_error,
        recovery.reached,
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
            "where the queues ended was not noted: more of the log was read and compared with "
            "them before=%d",
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
