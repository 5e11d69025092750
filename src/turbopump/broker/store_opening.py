"""Opening of a broker's store: the store's settings, and the log lines of its recovery."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig, FlushDiskType
from turbopump.disk.disk import Disk
from turbopump.message.delivery_time import DelayLevels
from turbopump.store.disk_space import SpaceLimits
from turbopump.store.files import StorePaths
from turbopump.store.message_store import MessageStore, StoreConfig
from turbopump.store.queues.read_result import ReadLimits
from turbopump.store.recovery.recovery import RecoveryReport
from turbopump.store.retention import RetentionRules

log = logging.getLogger(__name__)

DAMAGES_LOGGED: Final = 100
"""Maximum damaged ranges with a log line each at the start; all of them are counted."""


def open_store(
    settings: StoreConfig,
    disk: Disk,
    clock: Clock,
    is_batch: Callable[[str], bool | None],
    on_slow_append: Callable[[float], None],
) -> MessageStore:
    """Return the recovered store. Raises what ``MessageStore.open`` does."""
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
    """Log an error reported by the store or its tables."""
    log.error("store: %s", text)


def log_info(text: str) -> None:
    log.info("store: %s", text)


LOGGER: Final = "turbopump.broker.recovery_progress"
"""Name of a separate logger. The command line shows its lines on standard error, wherever other
lines go."""
recovery_log = logging.getLogger(LOGGER)

FIRST_LINE_S: Final = 1.0
LINE_EVERY_S: Final = 3.0


class RecoveryProgress:
    """Log lines about the progress of a long recovery, during which the broker serves no client. A
    recovery of under a second logs nothing. ``reached`` is passed to ``MessageStore.open``. ``now``
    in monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._begin: int | None = None
        self._begun = self._next_line = 0.0
        self._said = False

    def reached(self, offset: int, end: int) -> None:
        """Record that reading of the log has reached ``offset``, and will end at about ``end``. The
        first call gives the start."""
        now, begin = self._now(), self._begin
        if begin is None or offset <= begin:  # it may begin anew
            self._begin, self._begun, self._next_line = offset, now, now + FIRST_LINE_S
            return
        size, seconds = offset - begin, now - self._begun
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
            self._said, self._next_line = True, now + LINE_EVERY_S
            recovery_log.info(
                "recovering the store percent=%d MiB=%d of=%d MB/s=%.0f seconds_left=%.0f",
                100 * size // (end - begin),
                size >> 20,
                (end - begin) >> 20,
                size / seconds / 1e6,
                (end - offset) * seconds / size,
            )


# --- From a broker's settings to what its store is told.

MEMORY_ASSUMED: Final = 8 << 30


def store_config(config: BrokerConfig) -> StoreConfig:
    """Return the store's configuration. Raises ConfigError."""
    return StoreConfig(
        paths=_paths(config),
        segment_size=config.mapped_file_size_commit_log,
        queue_file_size=config.mapped_file_size_consume_queue,
        flushed_only=config.flush_disk_type == FlushDiskType.SYNC_FLUSH,
        copied_only=config.slave_acks > 0,
        is_copy=config.is_slave,
        with_crc=config.enabled_append_prop_crc,
        index_slots=config.max_hash_slot_num,
        index_entries=config.max_index_num if config.message_index_enable else 0,
        delay_levels=DelayLevels(config.delay_levels_ms),
        limits=ReadLimits(
            count_hot=config.max_transfer_count_on_message_in_memory,
            bytes_hot=config.max_transfer_bytes_on_message_in_memory,
            count_cold=config.max_transfer_count_on_message_in_disk,
            bytes_cold=config.max_transfer_bytes_on_message_in_disk,
            hot_size=_physical_memory() * config.access_message_in_memory_max_ratio // 100,
        ),
        space=SpaceLimits(
            used_max=config.disk_max_used_space_ratio,
            clean_forcibly=config.disk_space_clean_forcibly_ratio,
            warning=config.disk_space_warning_level_ratio,
            free_min=config.disk_free_space_min,
        ),
        retention=RetentionRules(
            reserved_ms=config.file_reserved_time * 3_600_000,
            hours=config.delete_hours,
            forcibly=config.clean_file_forcibly_enable,
            batch_max=config.delete_file_batch_max,
        ),
    )


def _paths(config: BrokerConfig) -> StorePaths:
    return StorePaths(
        Path(config.store_path_root_dir),
        config.commit_log_directories,
        config.read_only_commit_log_directories,
        _given(config.store_path_consume_queue),
        _given(config.store_path_index),
        _given(config.store_checkpoint),
        _given(config.abort_file),
    )


def _given(text: str) -> Path | None:
    return Path(text.strip()) if text.strip() else None


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return MEMORY_ASSUMED
