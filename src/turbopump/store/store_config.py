"""Settings of a store. ``broker/store_settings.py`` derives them from the settings of a broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from turbopump.message.delivery_time import DelayLevels
from turbopump.store.disk_space import SpaceLimits
from turbopump.store.files import StorePaths
from turbopump.store.queues.read_result import ReadLimits
from turbopump.store.retention import RetentionRules

SEGMENT_SIZE: Final = 1024 * 1024 * 1024
QUEUE_FILE_SIZE: Final = 6_000_000


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Settings of a store, with sizes in bytes.

    - ``flushed_only``: True if readers see a message only after it is on the disk
      (SYNC_FLUSH).
    - ``copied_only``: True if readers see a message only after enough slaves have it.
    - ``is_replica``: True in controller mode: readers see only what the sync state set has
      confirmed, also on a slave and after a restart.
    - ``shows_unconfirmed``: True if readers of a replica see the other messages, too.
    - ``is_copy``: True if the log is a copy of a master's log, so that ``put`` is refused.
    - ``index_slots``, ``index_entries``: size of an index file. 0 entries if messages are not
      indexed by key.
    - ``with_crc``: True if entries are written with a whole-entry CRC.
    - ``delay_levels``: delays from which the units of the schedule topic get their delivery
      times.
    """

    paths: StorePaths
    segment_size: int = SEGMENT_SIZE
    queue_file_size: int = QUEUE_FILE_SIZE
    flushed_only: bool = False
    copied_only: bool = False
    is_replica: bool = False
    shows_unconfirmed: bool = False
    is_copy: bool = False
    with_crc: bool = False
    index_slots: int = 0
    index_entries: int = 0
    delay_levels: DelayLevels = field(default_factory=DelayLevels)
    limits: ReadLimits = field(default_factory=ReadLimits)
    space: SpaceLimits = field(default_factory=SpaceLimits)
    retention: RetentionRules = field(default_factory=RetentionRules)

    @property
    def writes_crc(self) -> bool:
        """True if ``put`` writes entries with a CRC. A copied entry has a CRC if the master wrote
        one."""
        return self.with_crc and not self.is_copy

    @property
    def waits_for_copies(self) -> bool:
        """True if answers to sends wait for slaves."""
        return self.copied_only or self.is_replica
