"""Where the files of a store lie besides its root, how long they are kept, and how much of a disk they may take.

Its one rule is that of `broker_config.py`, of which this is a part: a field's key, default, unit and meaning stand here alone.
"""

from dataclasses import dataclass, field
from pathlib import Path

from turbopump.config.setting import LONG_MAX, setting
from turbopump.errors import ConfigError

_IGNORED = "; Apache's broker ignores this key, and finds such a store's files only in storePathRootDir"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKeeping:
    """The part of a broker's configuration that says what is kept where."""

    # Where.
    store_path_commit_log: str = field(
        default="",
        metadata=setting(
            "storePathCommitLog",
            "directories of the commit log, separated by commas: new files go round those that are not full; "
            "empty: commitlog in storePathRootDir",
        ),
    )
    read_only_commit_log_store_paths: str = field(
        default="",
        metadata=setting("readOnlyCommitLogStorePaths", "directories of the commit log in which no new file is made"),
    )
    store_path_consume_queue: str = field(
        default="", metadata=setting("storePathConsumeQueue", "directory of the queues" + _IGNORED, own=True)
    )
    store_path_index: str = field(
        default="", metadata=setting("storePathIndex", "directory of the index files" + _IGNORED, own=True)
    )
    store_checkpoint: str = field(default="", metadata=setting("storeCheckpoint", "the checkpoint file" + _IGNORED, own=True))
    abort_file: str = field(
        default="", metadata=setting("abortFile", "the file that marks an unclean stop" + _IGNORED, own=True)
    )

    # How long.
    file_reserved_time: int = field(
        default=72, metadata=setting("fileReservedTime", "a commit log file is deleted so long after its last write", "hours")
    )
    delete_when: str = field(
        default="04",
        metadata=setting("deleteWhen", "hours of the local day in which such files are deleted, separated by semicolons"),
    )
    clean_resource_interval: int = field(
        default=10_000, metadata=setting("cleanResourceInterval", "time between rounds of deletion", "ms", low=100)
    )
    delete_file_batch_max: int = field(
        default=10, metadata=setting("deleteFileBatchMax", "most commit log files deleted in a round", "files", low=1)
    )
    delete_commit_log_files_interval: int = field(
        default=100, metadata=setting("deleteCommitLogFilesInterval", "pause between two of them", "ms")
    )
    delete_consume_queue_files_interval: int = field(
        default=100,
        metadata=setting("deleteConsumeQueueFilesInterval", "pause between two lots (of up to 50) of queue files", "ms"),
    )

    # How much.
    disk_max_used_space_ratio: int = field(
        default=75,
        metadata=setting("diskMaxUsedSpaceRatio", "above it expired files are deleted at any hour; held within 10 and 95", "%"),
    )
    disk_space_clean_forcibly_ratio: int = field(
        default=85,
        metadata=setting(
            "diskSpaceCleanForciblyRatio",
            "above it the oldest files are deleted whatever their age; held within 30 and 85",
            "%",
        ),
    )
    disk_space_warning_level_ratio: int = field(
        default=90,
        metadata=setting(
            "diskSpaceWarningLevelRatio",
            "above it sends are refused, until diskSpaceCleanForciblyRatio is reached again; held within 35 and 90",
            "%",
        ),
    )
    clean_file_forcibly_enable: bool = field(
        default=True,
        metadata=setting(
            "cleanFileForciblyEnable", "the oldest files may be deleted before fileReservedTime if space is short"
        ),
    )
    disk_free_space_min: int = field(
        default=0,
        metadata=setting(
            "diskFreeSpaceMin",
            "not 0: free bytes are judged instead of the three ratios; sends are refused below it until 1.5 times as much is free, "
            "the oldest files are deleted below 1.5 times, expired ones at any hour below 2.5 times",
            "bytes",
            high=LONG_MAX,
            own=True,
        ),
    )

    @property
    def commit_log_directories(self) -> tuple[Path, ...]:
        """Where new segments go; empty: below the root."""
        return _directories(self.store_path_commit_log)

    @property
    def read_only_commit_log_directories(self) -> tuple[Path, ...]:
        return _directories(self.read_only_commit_log_store_paths)

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours of `deleteWhen`. Raises ConfigError."""
        hours = [hour.strip() for hour in self.delete_when.split(";") if hour.strip()]
        if not hours or not all(hour.isascii() and hour.isdigit() and int(hour) < 24 for hour in hours):
            raise ConfigError(f"deleteWhen={self.delete_when}: hours from 00 to 23 are expected, separated by semicolons")
        return frozenset(map(int, hours))


def _directories(text: str) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(Path(part.strip()) for part in text.split(",") if part.strip()))
