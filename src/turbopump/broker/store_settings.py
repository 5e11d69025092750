"""Settings of the store, derived from the settings of its broker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from turbopump.config.broker_config import BrokerConfig, FlushDiskType
from turbopump.message.delivery_time import DelayLevels
from turbopump.store.disk_space import SpaceLimits
from turbopump.store.files import StorePaths
from turbopump.store.queues.read_result import ReadLimits
from turbopump.store.retention import RetentionRules
from turbopump.store.store_config import StoreConfig

MEMORY_ASSUMED: Final = 8 << 30


def store_config(config: BrokerConfig) -> StoreConfig:
    """Return the settings of the store for a broker.

    Raises ConfigError if the settings do not fit together.
    """
    return StoreConfig(
        paths=_paths(config),
        segment_size=config.mapped_file_size_commit_log,
        queue_file_size=config.mapped_file_size_consume_queue,
        flushed_only=config.flush_disk_type == FlushDiskType.SYNC_FLUSH,
        copied_only=config.slave_acks > 0,
        is_replica=config.enable_controller_mode,
        shows_unconfirmed=config.unconfirmed_read_enable,
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
            hot_size=memory_size() * config.access_message_in_memory_max_ratio // 100,
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
        _given(config.store_path_epoch_file),
    )


def _given(text: str) -> Path | None:
    if text.strip():
        return Path(text.strip())
    return None


def memory_size(root: Path = Path("/")) -> int:
    """Return the memory of this machine in bytes, or the limit of this container or service.

    The limit includes the page cache.
    """
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        memory = MEMORY_ASSUMED
    return min([memory, *_memory_limits(root)])


def _memory_limits(root: Path) -> Iterator[int]:
    """Yield the limits of the control groups that this process is in. Source: cgroups(7).

    A line of the file is `0::PATH` in version 2, and `9:memory:PATH` in version 1. A container may
    see only its own group, as the root of all groups.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        mount, name = root / "sys/fs/cgroup", "memory.max"
        if "memory" in controllers.split(","):
            mount, name = mount / "memory", "memory.limit_in_bytes"
        elif controllers:
            continue
        group = mount / path.lstrip("/")
        for directory in (group, *group.parents[: len(group.parents) - len(mount.parents)]):
            with suppress(OSError, ValueError):  # not there, or without a limit: "max"
                yield int((directory / name).read_text())
