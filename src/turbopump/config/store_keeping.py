"""Where the files of a store lie besides its root, how long they are kept, and how much of a disk
they may take.

Its one rule is that of `broker_config.py`, of which this is a part: a field's key, default, unit
and meaning stand here alone.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from turbopump.config.delay_levels import DEFAULT_LEVELS, parse_delay_levels
from turbopump.config.setting import LONG_MAX, setting
from turbopump.errors import ConfigError

_IGNORED = (
    "; Apache's broker ignores this key, and finds such a store's files only in storePathRootDir"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKeeping:
    """The part of a broker's configuration that says what is kept where."""

    # Where.
    store_path_commit_log: str = field(
        default="",
        metadata=setting(
            "storePathCommitLog",
            "directories of the commit log, separated by commas: new files go round those that "
            "are not full; "
            "empty: commitlog in storePathRootDir",
        ),
    )
    read_only_commit_log_store_paths: str = field(
        default="",
        metadata=setting(
            "readOnlyCommitLogStorePaths",
            "directories of the commit log in which no new file is made",
        ),
    )
    store_path_consume_queue: str = field(
        default="",
        metadata=setting("storePathConsumeQueue", "directory of the queues" + _IGNORED, own=True),
    )
    store_path_index: str = field(
        default="",
        metadata=setting("storePathIndex", "directory of the index files" + _IGNORED, own=True),
    )
    store_checkpoint: str = field(
        default="", metadata=setting("storeCheckpoint", "the checkpoint file" + _IGNORED, own=True)
    )
    abort_file: str = field(
        default="",
        metadata=setting("abortFile", "the file that marks an unclean stop" + _IGNORED, own=True),
    )

    # How long.
    file_reserved_time: int = field(
        default=72,
        metadata=setting(
            "fileReservedTime", "a commit log file is deleted so long after its last write", "hours"
        ),
    )
    delete_when: str = field(
        default="04",
        metadata=setting(
            "deleteWhen",
            "hours of the local day in which such files are deleted, separated by semicolons",
        ),
    )
    clean_resource_interval: int = field(
        default=10_000,
        metadata=setting("cleanResourceInterval", "time between rounds of deletion", "ms", low=100),
    )
    delete_file_batch_max: int = field(
        default=10,
        metadata=setting(
            "deleteFileBatchMax", "most commit log files deleted in a round", "files", low=1
        ),
    )
    delete_commit_log_files_interval: int = field(
        default=100,
        metadata=setting("deleteCommitLogFilesInterval", "pause between two of them", "ms"),
    )
    delete_consume_queue_files_interval: int = field(
        default=100,
        metadata=setting(
            "deleteConsumeQueueFilesInterval",
            "pause between two lots (of up to 50) of queue files",
            "ms",
        ),
    )

    # How much.
    disk_max_used_space_ratio: int = field(
        default=75,
        metadata=setting(
            "diskMaxUsedSpaceRatio",
            "above it expired files are deleted at any hour; held within 10 and 95",
            "%",
            held=(10, 95),
        ),
    )
    disk_space_clean_forcibly_ratio: int = field(
        default=85,
        metadata=setting(
            "diskSpaceCleanForciblyRatio",
            "above it the oldest files are deleted whatever their age; held within 30 and 85",
            "%",
            held=(30, 85),
        ),
    )
    disk_space_warning_level_ratio: int = field(
        default=90,
        metadata=setting(
            "diskSpaceWarningLevelRatio",
            "above it sends are refused, until diskSpaceCleanForciblyRatio is reached again; "
            "held within 35 and 90",
            "%",
            held=(35, 90),
        ),
    )
    clean_file_forcibly_enable: bool = field(
        default=True,
        metadata=setting(
            "cleanFileForciblyEnable",
            "the oldest files may be deleted before fileReservedTime if space is short",
        ),
    )
    disk_free_space_min: int = field(
        default=0,
        metadata=setting(
            "diskFreeSpaceMin",
            "not 0: free bytes are judged instead of the three ratios; sends are refused below "
            "it until 1.5 times as much is free, "
            "the oldest files are deleted below 1.5 times, expired ones at any hour below 2.5 times",
            "bytes",
            high=LONG_MAX,
            own=True,
        ),
    )

    # When delayed messages come.
    message_delay_level: str = field(
        default=DEFAULT_LEVELS,
        metadata=setting(
            "messageDelayLevel", "delays of levels 1, 2, … in s, m, h or d, separated by spaces"
        ),
    )
    flush_delay_offset_interval: int = field(
        default=10_000,
        metadata=setting(
            "flushDelayOffsetInterval",
            "time between saves of config/delayOffset.json",
            "ms",
            low=100,
        ),
    )

    timer_wheel_enable: bool = field(
        default=True,
        metadata=setting(
            "timerWheelEnable",
            "messages may ask for any time of delivery; off: such messages are refused",
        ),
    )
    timer_max_delay_sec: int = field(
        default=40 * 365 * 86_400,
        metadata=setting(
            "timerMaxDelaySec",
            "how far ahead that time may be; Apache's default is 259200, three days",
            "s",
            low=1,
        ),
    )
    timer_precision_ms: int = field(
        default=1000,
        metadata=setting(
            "timerPrecisionMs",
            "messages are delivered so much after their time at most; with another value than "
            "before, what waits gets its "
            "place in timerlog and timerwheel anew at the start",
            "ms",
            only=(100, 200, 500, 1000),
            otherwise="as Apache's broker counts any other value as one of these",
        ),
    )
    timer_roll_window_slot: int = field(
        default=2 * 86_400,
        metadata=setting(
            "timerRollWindowSlot",
            "a message that is further ahead is stored again on the way, each time; less than 2 "
            "or more than 604740 count as 604740",
            "slots",
        ),
    )
    timer_flush_interval_ms: int = field(
        default=1000,
        metadata=setting(
            "timerFlushIntervalMs",
            "time between syncs of timerlog and timerwheel; after a kill, messages delivered in "
            "it may be delivered again",
            "ms",
            low=10,
        ),
    )
    mapped_file_size_timer_log: int = field(
        default=100 * 1024 * 1024,
        metadata=setting(
            "mappedFileSizeTimerLog", "size of a file of the timer log", "bytes", low=1024
        ),
    )
    recall_message_enable: bool = field(
        default=True,
        metadata=setting(
            "recallMessageEnable",
            "a message may be recalled before its time; off by default with Apache",
        ),
    )

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """The delays of `messageDelayLevel`. Raises ConfigError."""
        return parse_delay_levels(self.message_delay_level)

    @property
    def commit_log_directories(self) -> tuple[Path, ...]:
        """Where new segments go; empty: below the root. Raises ConfigError."""
        return _directories("storePathCommitLog", self.store_path_commit_log)

    @property
    def read_only_commit_log_directories(self) -> tuple[Path, ...]:
        """Where segments are and none is made. Raises ConfigError."""
        return _directories("readOnlyCommitLogStorePaths", self.read_only_commit_log_store_paths)

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours of `deleteWhen`. Raises ConfigError."""
        hours = [hour.strip() for hour in self.delete_when.split(";") if hour.strip()]
        if not hours or not all(
            hour.isascii() and hour.isdigit() and int(hour) < 24 for hour in hours
        ):
            raise ConfigError(
                f"deleteWhen={self.delete_when}: hours from 00 to 23 are expected, "
                "separated by semicolons"
            )
        return frozenset(map(int, hours))


def _directories(key: str, text: str) -> tuple[Path, ...]:
    """The directories in a setting's text. Two names of one directory are refused: its segments
    would be found twice."""
    found: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        same = found.setdefault(os.path.realpath(part), part)
        if same is not part:
            both = (
                f"{part} twice"
                if same == part
                else (f"{same} and {part}, which are the same directory")
            )
            raise ConfigError(f"{key} names {both}: name it once")
    return tuple(map(Path, found.values()))
