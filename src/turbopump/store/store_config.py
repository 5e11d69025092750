"""What a store is told when it is opened: where its files are, how large, and how it treats
them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from turbopump.message.delay_levels import DelayLevels
from turbopump.store.disk_space import SpaceLimits
from turbopump.store.files import StorePaths
from turbopump.store.queue_reader import ReadLimits
from turbopump.store.retention import RetentionRules

SEGMENT_SIZE: Final = 1024 * 1024 * 1024
QUEUE_FILE_SIZE: Final = 6_000_000
BATCH_QUEUE_FILE_SIZE: Final = 13_800_000


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Sizes in bytes. ``flushed_only``: readers see a message only once it is on the disk
    (SYNC_FLUSH). ``index_entries`` 0: messages are not indexed by key. ``with_crc``: entries are
    written with a CRC over all of them. ``delay_levels``: when messages of the schedule topic are
    due, which their units hold."""

    paths: StorePaths
    segment_size: int = SEGMENT_SIZE
    queue_file_size: int = QUEUE_FILE_SIZE
    batch_queue_file_size: int = BATCH_QUEUE_FILE_SIZE
    flushed_only: bool = False
    with_crc: bool = False
    index_slots: int = 0
    index_entries: int = 0
    delay_levels: DelayLevels = field(default_factory=DelayLevels)
    limits: ReadLimits = field(default_factory=ReadLimits)
    space: SpaceLimits = field(default_factory=SpaceLimits)
    retention: RetentionRules = field(default_factory=RetentionRules)
