"""Timers on a disk in memory, without a broker."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from turbopump.disk.system_disk import SystemDisk
from turbopump.store.files import StorePaths
from turbopump.store.log.cold_reads import finish_now
from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.store.timers.pending_timers import PendingTimers, TimerConfig
from turbopump.store.timers.timer_checkpoint import TimerCheckpoint
from turbopump.store.timers.timer_log import TIMER_UNIT_SIZE
from turbopump.store.timers.timer_recovery import open_timers

NOW = 1_700_000_000_000
UNITS = 20
LOG_FILE = UNITS * TIMER_UNIT_SIZE + 30
"""Twenty units a file, a blank, and 14 bytes of nothing."""


class Timers:
    """Timers of a made-up queue: message k lies at 1000 · (k + 1) of the commit log and has 200
    bytes."""

    def __init__(self, root: Path) -> None:
        self.config = TimerConfig(
            StorePaths(root), slots=200, roll_window_slots=60, log_file_size=LOG_FILE
        )
        self.disk = SystemDisk()
        self.disk.make_directory(root)
        self.queue = ConsumeQueue(self.disk, root / "queue", "rmq_sys_wheel_timer", 0, 2000)
        self.reports: list[str] = []
        self.timers = self.open()

    def open(self, now: int = NOW) -> PendingTimers:
        self.timers = open_timers(self.config, self.disk, self.queue, now, self.reports.append)
        return self.timers

    def add(self, due: int, *, recalls: bool = False, now: int = NOW, put: bool = True) -> int:
        index = self.queue.max_index
        self.queue.append(index, 1000 * (index + 1), 200, 0)
        if put:
            self.put(index, due, recalls=recalls, now=now)
        return index

    def put(self, index: int, due: int, *, recalls: bool = False, now: int = NOW) -> None:
        self.timers.put_message(due, 1000 * (index + 1), 200, now, 7, recalls=recalls)
        self.timers.queue_offset = index + 1

    def save(self, now: int = NOW) -> TimerCheckpoint:
        checkpoint = self.timers.checkpoint(now)
        for segment in self.timers.dirty_segments():
            segment.sync()
        self.timers.write_checkpoint(checkpoint)
        self.timers.saved = checkpoint
        return checkpoint

    def pending(self) -> dict[int, list[int]]:
        """Slot, in seconds after NOW, to the messages it holds."""
        timers, found = self.timers, {}
        for time in range(timers.read_time, timers.read_time + 400_000, 1000):
            offsets = finish_now(timers.due(time)).offsets
            if offsets:
                found[(time - NOW) // 1000] = [offset // 1000 - 1 for offset in offsets]
        assert timers.next_time() == (min(found) * 1000 + NOW if found else None)
        return found

    def kill(self, root: Path) -> Timers:
        """What the next process finds after a kill now."""
        shutil.copytree(self.config.paths.root, root)
        twin = Timers.__new__(Timers)
        twin.config = replace(self.config, paths=StorePaths(root))
        twin.disk, twin.reports = SystemDisk(), []
        twin.queue = ConsumeQueue(twin.disk, root / "queue", "rmq_sys_wheel_timer", 0, 2000)
        twin.queue.load()
        return twin


def seconds(count: int) -> int:
    return NOW + count * 1000
