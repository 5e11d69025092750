"""Metrics of the store: sizes, what is not on the disk yet, and the age of the oldest message.

Source: apache/rocketmq ``DefaultStoreMetricsManager``. Names that begin with ``turbopump_`` are
ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from turbopump.broker.counters.labels import LOCAL_DISK, STORAGE
from turbopump.broker.stored import Stored
from turbopump.metrics.family import Family, Kind, Metrics, Sample
from turbopump.metrics.tables import HistogramTable
from turbopump.store.log.cold_reads import ReadState
from turbopump.store.queues.lookup import StoredEntry

SIZE: Final = Family(
    "rocketmq_storage_size_bytes",
    Kind.GAUGE,
    "Used bytes of the file system that contains the store, whoever uses them.",
    STORAGE,
    instrument="rocketmq_storage_size",
    unit="bytes",
)
FLUSH_BEHIND: Final = Family(
    "rocketmq_storage_flush_behind_bytes",
    Kind.GAUGE,
    "Bytes of the commit log that are not on the disk yet.",
    STORAGE,
    unit="bytes",
)
DISPATCH_BEHIND: Final = Family(
    "rocketmq_storage_dispatch_behind_bytes",
    Kind.GAUGE,
    "Bytes of the commit log that are in no queue yet.",
    STORAGE,
    unit="bytes",
)
RESERVE_TIME: Final = Family(
    "rocketmq_storage_message_reserve_time_milliseconds",
    Kind.GAUGE,
    "Age of the oldest stored message, in ms.",
    STORAGE,
    instrument="rocketmq_storage_message_reserve_time",
    unit="milliseconds",
)
WRITABLE: Final = Family(
    "turbopump_store_writable",
    Kind.GAUGE,
    "1 if the store accepts messages, 0 after a failed sync or while the disk is full.",
)
DISK_USED: Final = Family(
    "turbopump_store_disk_used_ratio",
    Kind.GAUGE,
    "Used part of the file system of each directory of the store, from 0 to 1.",
    ("directory",),
)
SYNC_SECONDS: Final = Family(
    "turbopump_store_sync_seconds",
    Kind.HISTOGRAM,
    "Seconds that the disk took to make written bytes of the commit log durable (fdatasync).",
    bounds=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)


class _StorageReads:
    """Reads of the metrics of the store."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._store = stored.store
        self._oldest_at = -1
        """Start of the log for which ``_oldest_ms`` was read, or −1."""
        self._oldest_ms = 0
        self._reading = False

    def size(self) -> Iterator[Sample]:
        space = self._store.space.figures.get(self._stored.settings.paths.consume_queues)
        if space is not None:
            yield LOCAL_DISK, space.total - space.free

    def flush_behind(self) -> Iterator[Sample]:
        yield LOCAL_DISK, max(self._store.log.end - self._store.durable.value, 0)

    def dispatch_behind(self) -> Iterator[Sample]:
        yield LOCAL_DISK, max(self._store.log.end - self._store.dispatcher.dispatched, 0)

    def reserve_time(self) -> Iterator[Sample]:
        # The oldest message changes only when a file is deleted. Its time is read once then. If it
        # is not in memory, this scrape has the old value or none.
        log = self._store.log
        if self._oldest_at != log.start and log.end > log.start and not self._reading:
            self._read_oldest(log.start)
        if self._oldest_ms > 0:
            yield LOCAL_DISK, max(self._stored.clock.now_ms() - self._oldest_ms, 0)

    def _read_oldest(self, start: int) -> None:
        def done(entry: StoredEntry | None) -> None:
            readable = entry is not None and entry.fault is None
            self._oldest_ms = entry.message.store_timestamp if entry and readable else 0
            self._oldest_at = start
            self._reading = False

        def failed(_error: Exception) -> None:
            self._reading = False

        self._reading = True
        steps = self._store.lookup.entry_at(start)
        outcome = self._store.cold_reads.run(steps, done, lambda: True, failed)
        if outcome is ReadState.REFUSED:
            self._reading = False
        elif not isinstance(outcome, ReadState):
            done(outcome)

    def writable(self) -> Iterator[Sample]:
        yield (), self._store.fault is None

    def disk_used(self) -> Iterator[Sample]:
        for path, space in list(self._store.space.figures.items()):
            if space.total:
                yield (str(path),), (space.total - space.free) / space.total


def add_storage(metrics: Metrics, stored: Stored) -> None:
    """Add the metrics of the store."""
    reads = _StorageReads(stored)
    metrics.add(SIZE, reads.size)
    metrics.add(FLUSH_BEHIND, reads.flush_behind)
    metrics.add(DISPATCH_BEHIND, reads.dispatch_behind)
    metrics.add(RESERVE_TIME, reads.reserve_time)
    metrics.add(WRITABLE, reads.writable)
    metrics.add(DISK_USED, reads.disk_used)
    syncs = HistogramTable(SYNC_SECONDS)
    syncs.observe((), 0.0, times=0)  # so that the metric is there before the first sync
    stored.store.flusher.on_log_synced = lambda seconds: syncs.observe((), seconds)
    metrics.add(SYNC_SECONDS, syncs.read)
