"""Front door of the store: opening, appending, reading and closing.

``open`` recovers the directory, and ``close`` leaves it clean. ``put`` and ``put_batch`` append
messages and dispatch them at once; a slave's ``copied`` does the same with its master's bytes.
``get`` reads a queue. Everything runs in one thread, without network. The owner of the clock starts
flushes, and threads finish them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from turbopump.clock import Clock
from turbopump.disk.disk import Disk
from turbopump.errors import MessageError, StoreClosedError
from turbopump.message.codec import without_crc, write_entry
from turbopump.message.delivery_time import SCHEDULE_TOPIC, DelayLevels
from turbopump.message.entry import CRC_NAME, CRC_SUFFIX_SIZE, FIXED_SIZE, TOPIC_SIZE_MAX_V1
from turbopump.message.properties import PROPERTIES_SIZE_MAX
from turbopump.store.confirmed import Confirmed
from turbopump.store.copied_log import CopiedLog
from turbopump.store.disk_space import SpaceLimits, SpaceWatch, StartReserve, with_free_bytes
from turbopump.store.dispatcher import Dispatcher
from turbopump.store.files import StorePaths
from turbopump.store.flusher import Flusher
from turbopump.store.index.key_index import KeyIndex
from turbopump.store.log.cold_reads import ColdReads
from turbopump.store.log.commit_log import SLOW_S, AppendLatency, CommitLog
from turbopump.store.log.commit_log import NewMessage as NewMessage
from turbopump.store.log.commit_log import PutResult as PutResult
from turbopump.store.mapped_file import GROWTH_MAX
from turbopump.store.packed_batch import PackedBatch, write_batch
from turbopump.store.provenance import ABORT_MARK, LOCK_MARK, LastRun, Provenance
from turbopump.store.queues.consume_queue import UNIT_SIZE, ConsumeQueue, unpack_unit
from turbopump.store.queues.consume_queue_table import (
    ConsumeQueueTable,
    DeletionDone,
    QueueDeletions,
)
from turbopump.store.queues.lookup import Lookup
from turbopump.store.queues.queue_ends import NotedQueueEnds, QueueEnds
from turbopump.store.queues.queue_reader import QueueReader
from turbopump.store.queues.read_result import GetResult, ReadLimits
from turbopump.store.recovery.checkpoint import StoreCheckpoint
from turbopump.store.recovery.known_log_end import KnownLogEnd
from turbopump.store.recovery.recovery import Recovery, RecoveryReport
from turbopump.store.repair.queue_rebuild import QueueRebuild
from turbopump.store.retention import Retention, RetentionRules
from turbopump.store.roots import LogRoots, StoreLock, make_directories

SEGMENT_SIZE: Final = 1024 * 1024 * 1024
COPY_REFUSAL: Final = (
    "this broker is a slave (brokerRole=SLAVE) and takes no messages; send to its master"
)
QUEUE_FILE_SIZE: Final = 6_000_000


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Settings of a store; sizes are in bytes.

    - ``flushed_only``: readers see a message only after it is on the disk (SYNC_FLUSH).
    - ``copied_only``: readers see a message only after enough slaves have it.
    - ``is_copy``: the log is a copy of the master's log, so ``put`` is refused.
    - ``index_entries``: 0 if messages are not indexed by key.
    - ``with_crc``: entries are written with a whole-entry CRC.
    - ``delay_levels``: delays from which the units of the schedule topic get their delivery
      times.
    """

    paths: StorePaths
    segment_size: int = SEGMENT_SIZE
    queue_file_size: int = QUEUE_FILE_SIZE
    flushed_only: bool = False
    copied_only: bool = False
    is_copy: bool = False
    with_crc: bool = False
    index_slots: int = 0
    index_entries: int = 0
    delay_levels: DelayLevels = field(default_factory=DelayLevels)
    limits: ReadLimits = field(default_factory=ReadLimits)
    space: SpaceLimits = field(default_factory=SpaceLimits)
    retention: RetentionRules = field(default_factory=RetentionRules)


class MessageStore:
    """Open store directory. Create it with ``MessageStore.open``."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        clock: Clock,
        log_error: Callable[[str], None],
        log_info: Callable[[str], None],
        is_batch: Callable[[str], bool | None],
        on_slow_append: Callable[[float], None],
    ) -> None:
        self._config = config
        self._disk = disk
        self._clock = clock
        self._monotonic = clock.monotonic
        self._closed = False
        self._sealed = config.is_copy
        """True if ``put`` is refused."""
        self._parts = ExitStack()
        """Parts to close, in reverse order."""
        # a copied entry has a CRC if its master wrote one
        self.with_crc = config.with_crc and not config.is_copy
        self._overhead = FIXED_SIZE - 16 + (CRC_SUFFIX_SIZE if self.with_crc else 0)
        self.properties_size_max = PROPERTIES_SIZE_MAX - (CRC_SUFFIX_SIZE if self.with_crc else 0)
        """Largest property text of a message in bytes. The CRC needs some of the space, as one more
        property."""
        self._log_error = log_error
        paths = config.paths
        self.space = SpaceWatch(
            disk,
            paths.commit_logs,
            (paths.consume_queues, paths.index),
            config.space,
            log_error,
            log_info,
            forcibly=config.retention.forcibly,
        )
        self.start_reserve = StartReserve(disk, paths.reserve, log_info)
        self.provenance = Provenance(disk, paths.provenance)
        self.log = CommitLog(
            disk,
            paths.commit_logs,
            config.segment_size,
            paths.read_only_commit_logs,
            synced_often=config.flushed_only,
            requires_crc=self.provenance.requires_crc,
            full_roots=lambda: self.space.full_roots,
            on_segment=self._segment_begun,
        )
        self.roots = LogRoots(disk, self.log.files, self.provenance)
        self.queues = ConsumeQueueTable(
            disk,
            paths,
            config.queue_file_size,
            is_batch,
            lambda topic: self.queue_ends.deleted_until(topic),
        )
        self.queue_ends = QueueEnds(disk, paths.queue_ends, self.queues, log_error, log_info)
        self._deletions = QueueDeletions(self.log, self.queues, self.queue_ends)
        self.index: KeyIndex | None = None
        if config.index_entries:
            self.index = KeyIndex(
                disk,
                clock,
                paths.index,
                config.index_slots,
                config.index_entries,
                self.provenance,
                self.space,
                log_error,
            )
        self.confirmed = Confirmed(
            self.log, flushed_only=config.flushed_only, copied_only=config.copied_only
        )
        self.durable = self.confirmed.durable
        self.dispatcher = Dispatcher(self.index, self.confirmed, config.delay_levels)
        self.checkpoint = StoreCheckpoint(disk, paths.checkpoint)
        self.flusher = Flusher(
            disk,
            self.log,
            self.queues,
            self.index,
            self.dispatcher,
            self.checkpoint,
            self.confirmed,
            log_error,
        )
        self.retention = Retention(
            disk,
            clock,
            self.log,
            self.queues,
            self.index,
            config.retention,
            self.space,
            self.flusher,
            self.roots,
            self.queue_ends,
            log_error,
            log_info,
        )
        self.cold_reads = ColdReads(disk)
        self.rebuild = QueueRebuild(
            self.log, self.queues, ColdReads(disk), self.dispatcher.unit_tags, log_error
        )
        self.reader = QueueReader(
            self.log,
            self.queues,
            config.limits,
            self.cold_reads,
            self.rebuild.mark,
            clock.monotonic,
        )
        self.lookup = Lookup(self.log, self.queues, self.index, self.confirmed, self.rebuild.mark)
        self.latency = AppendLatency(lambda: self.queues.units, on_slow_append)
        self.recovery: RecoveryReport | None = None
        self.unchanged = 0
        """Log offset up to which the log is unchanged since our last run ended; 0 if another
        program has used the directory since."""
        self.copied: CopiedLog | None = None
        """Appends the master's bytes on a slave. Set by ``open`` if ``is_copy``."""

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        disk: Disk,
        clock: Clock,
        log_error: Callable[[str], None],
        on_progress: Callable[[int, int], None] = lambda _offset, _end: None,
        is_batch: Callable[[str], bool | None] = lambda _topic: None,
        *,
        log_info: Callable[[str], None] = lambda _text: None,
        on_slow_append: Callable[[float], None] = lambda _seconds: None,
    ) -> MessageStore:
        """Lock the directory, recover it, and leave an abort file until ``close``.

        - ``log_error``: gets a line when something is wrong.
        - ``log_info``: gets a line when files were deleted or an error is over.
        - ``on_progress``: gets the progress of ``Recovery``.
        - ``is_batch``: returns True if a topic has ``queue.type=BatchCQ``, and None if that is
          unknown.
        - ``on_slow_append``: gets the seconds of each append that took ``SLOW_S`` or longer.

        Raises StoreLockedError if another store has locked the directory. Raises StoreDamagedError
        for missing files, or files that cannot belong together. Raises StoreError for an unusable
        directory, and OSError.
        """
        lock = StoreLock(disk, config.paths)
        with ExitStack() as parts:
            parts.callback(lock.release)
            try:
                make_directories(disk, config.paths)
                lock.lock_directories(config.paths)
                store = cls(config, disk, clock, log_error, log_info, is_batch, on_slow_append)
                store._open(lock, parts, on_progress)
            except OSError as error:
                raise with_free_bytes(error, disk) from None
            store._parts = parts.pop_all()
        return store

    def _open(
        self, lock: StoreLock, parts: ExitStack, on_progress: Callable[[int, int], None]
    ) -> None:
        """Open and recover every part. ``parts`` gets the parts to close, in reverse order.

        Nothing is changed before the log can surely be opened. The notes for the next start are
        written last: if another broker has used the store, our older notes become true again only
        after recovery.
        """
        disk, abort, log = self._disk, self._config.paths.abort, self.log
        self.start_reserve.use_if_full()
        last = LastRun.of(lock.found, disk.read_file(abort), self.provenance)
        self.provenance.load(crashed_here=last.crashed_here, clean=last.clean)
        log.load()
        self.roots.check()
        known = self.queue_ends.load(trusted=not last.apache)
        known_end = KnownLogEnd.of(self.checkpoint, known, clean=last.clean, ours=last.ours)
        known_end.refuse_missing(log)
        disk.write_file(abort, str(os.getpid()).encode() + ABORT_MARK)
        self.queues.load()
        report = self.recovery = self._recover(last, known, known_end, on_progress)
        if last.ours:
            holes = [damage.start for damage in report.damages]
            synced = log.end if last.clean else self.checkpoint.safe_offset
            self.unchanged = min(log.end, synced, *holes)
        lock.mark(LOCK_MARK)
        if not last.clean or log.end < known_end.synced:
            self.flusher.flush_all_now()
        elif not report.entries:
            self.flusher.queues_synced = log.end  # nothing was written since the clean stop
        self.confirmed.flushed(log.end)
        self.latency.begin()
        self.reader.open_at(log.end, after_crash=not last.clean)
        for queue in self.queues:
            queue.forget_found()
            queue.opened_at = queue.max_index
            queue.deleted_until = self.queue_ends.deleted_until(queue.topic)
        if self._config.is_copy:
            self.copied = CopiedLog(log, self.queues, self.dispatcher)
        if self.index is not None:
            self.index.warm()
        parts.push(self._note_clean_stop)
        for part in (self.index, self.checkpoint, self.queues, log):
            if part is not None:
                parts.callback(part.close)
        parts.callback(self._flush_all)
        parts.callback(self.finish_background)

    def _recover(
        self,
        last: LastRun,
        known: NotedQueueEnds,
        known_end: KnownLogEnd,
        on_progress: Callable[[int, int], None],
    ) -> RecoveryReport:
        """Bring all parts to one consistent end, return a report of faults, and start the notes for
        the next start."""
        log, index = self.log, self.index
        recovery = Recovery(
            log,
            self.queues,
            index,
            self.dispatcher,
            self.checkpoint,
            clean=last.clean,
            derived_complete=index is None or index.load(),
            index_synced=self.provenance.crashed_here,
            stopped_here=last.clean and last.ours,
            copied_again=self._config.is_copy and self._config.flushed_only and not last.clean,
            on_progress=on_progress,
            known=known,
        )
        report = recovery.run()
        lost = known_end.lost(log, report.log_end, report.torn, report.queued)
        if lost is not None:
            self._log_error(lost)
        if report.mismatch is not None:
            part = f"queues are written again from {report.begun_at} on"
            again = "all queues and indexes are written again" if report.rebuilt else part
            self._log_error(f"a consume queue was not as it should be, {again}: {report.mismatch}")
        self.queue_ends.begin(
            log.start,
            report.log_end,
            recovery.known.deleted,
            agreed=report.mismatch is None and not report.rebuilt,
            all_read=log.is_young,
        )
        names = index.names if index is not None else None
        self.provenance.begin(report.log_end, names, with_crc=self.with_crc)
        self.roots.note()
        if index is not None:
            index.begin_noting()
        return report

    def finish_background(self) -> None:
        """Wait for running syncs and saves of tables, and start no more. This is the first step of
        closing."""
        self.cold_reads.close()
        self.rebuild.reads.close()
        if self.index is not None:
            self.index.write_waiting()  # it may need a new file, whose name is then recorded
        self._disk.close()

    def close(self) -> None:
        """Sync everything, mark the stop as clean, and release the directory. Raises OSError if a
        sync failed."""
        self._closed = self._sealed = True
        self._parts.close()

    def _flush_all(self) -> None:
        if self.index is not None and self.index.give_up():
            self.provenance.index_names = None  # the next start fills the index again
        self.flusher.flush_all_now()

    def _note_clean_stop(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: object
    ) -> None:
        """Record a clean stop and remove the abort file, unless closing a part failed with the
        exception type ``kind``."""
        if kind is None and self.durable.error is None and not self.flusher.queues_failed:
            self.queue_ends.end(self.log.end, all_read=self.log.is_young)
            self.provenance.end(self.log.end)
            self._disk.remove(self._config.paths.abort)

    def _segment_begun(self, start: int) -> None:
        self.roots.segment_begun()
        if start > 0:
            self.queue_ends.note(start)

    def put(
        self,
        topic: str,
        queue_id: int,
        message: NewMessage,
        *,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        own: bool = False,
        as_stored: bool = False,
    ) -> PutResult:
        """Append one message and dispatch it.

        - ``own``: the broker itself delivers the message (an elapsed delay, a half message to
          check). Own messages are accepted while sends are refused for lack of space, if they fit
          into existing files, or new files leave the reserve free (``disk_space.py``).
        - ``as_stored``: the properties come from an older entry, perhaps one without a CRC. If
          they leave no space for a CRC, the entry gets none, and that is first recorded on the
          disk.

        Raises StoreClosedError if the store accepts no writes, for example on a full disk. Raises
        MessageError if no file can hold the message, and OSError if a new file cannot be made.
        Hosts have the form of ``codec.encode_host``. Cost: about 6 µs, including 1 for the CRC and
        2 for the key index.
        """
        short_of_room = self.space.refusal is not None
        if self._sealed or self.durable.error is not None or (short_of_room and not own):
            raise StoreClosedError(self.refusal)
        began = self._monotonic()
        queue = self.queues.find_or_make(topic, queue_id)
        name = topic.encode()
        body, properties = message.body, message.properties
        with_crc, overhead = self.with_crc, self._overhead
        # Nearly every text ends with a separator, is short, and has no CRC, so it can be stored
        # unchanged. These three checks are cheaper than the call.
        if (
            CRC_NAME in properties
            or not properties.endswith(b"\x02")
            or len(properties) > self.properties_size_max
        ):
            properties, with_crc = self._storable(properties, as_stored=as_stored)
            if with_crc != self.with_crc:
                overhead -= CRC_SUFFIX_SIZE
                self.provenance.note_without_crc(self.durable.value)
        size = overhead + len(born_host) + len(store_host) + len(body) + len(name) + len(properties)
        if len(name) > TOPIC_SIZE_MAX_V1:
            size += 1
        log = self.log
        # Only the broker's own messages get here when space is short, and they must leave a
        # reserve.
        if short_of_room and not self.space.has_room_beside_reserve(
            log.new_file_for(size), queue.room_missing(1)
        ):
            raise StoreClosedError(self.refusal)
        try:
            queue.make_room(1)  # operations that may fail come before the first written byte
            offset = log.reserve(size)
        except OSError as error:
            raise self._no_room(error) from None
        now = self._clock.now_ms()
        index = queue.max_index
        buffer, at = log.room
        write_entry(
            buffer,
            at,
            queue_id,
            message.flag,
            index,
            offset,
            sys_flag,
            born_timestamp,
            born_host,
            now,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body,
            name,
            properties,
            with_crc,
        )
        # Only now does the log end behind the entry. If writing had failed, the next message would
        # overwrite it.
        log.written(size)
        tags = (
            message.tags_code
            if topic != SCHEDULE_TOPIC
            else self.dispatcher.delayed_tags(message, now)
        )
        self.dispatcher.dispatch(
            queue, index, offset, size, tags, sys_flag, now, message.unique, message.keys
        )
        if (took := self._monotonic() - began) >= SLOW_S:
            self.latency.slow(took)
        return PutResult(index, offset, log.end)

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        batch: PackedBatch,
        *,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
    ) -> tuple[PutResult, bytes]:
        """Append all messages of a batch side by side in one segment, or none. Return the position
        of the first, and the packed units of all.

        Raises the same errors as ``put``. Cost: about 0.9 µs a message of 1 KiB in a batch of 32,
        with CRC and key index.
        """
        if self._sealed or self.durable.error is not None or self.space.refusal is not None:
            raise StoreClosedError(self.refusal)
        began = self._monotonic()
        queue = self.queues.find_or_make(topic, queue_id)
        name = topic.encode()
        if batch.properties_size_max > self.properties_size_max:
            raise self._too_long(batch.properties_size_max)
        fixed = (
            self._overhead
            + len(born_host)
            + len(store_host)
            + len(name)
            + (len(name) > TOPIC_SIZE_MAX_V1)
        )
        # All sizes are known before anything is written, so that the batch gets one reservation, in
        # one segment: it is stored whole or not at all.
        count = batch.count
        size = batch.size + count * fixed
        log = self.log
        try:
            queue.make_room(count)
            offset = log.reserve(size)
        except OSError as error:
            raise self._no_room(error) from None
        now = self._clock.now_ms()
        index = queue.max_index
        buffer, at = log.room
        units, keys = write_batch(
            buffer,
            at,
            batch.data,
            batch.spans,
            batch.added,
            batch.keys,
            queue_id,
            index,
            offset,
            sys_flag,
            born_timestamp,
            born_host,
            now,
            store_host,
            name,
            self.with_crc,
        )
        # The last unit must end at the end of the reservation. Otherwise the entries had another
        # size than reserved.
        assert sum(unpack_unit(units, -UNIT_SIZE)[:2]) == offset + size
        log.written(size)
        self.dispatcher.dispatch_many([(queue, units)], keys, log.end, sys_flag, now)
        if (took := self._monotonic() - began) >= SLOW_S:
            self.latency.slow(took)
        return PutResult(index, offset, log.end), units

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        accept: Callable[[int], bool] | None = None,
    ) -> GetResult:
        """Return messages of a queue from ``offset`` on whose tag codes pass ``accept``. Waits for
        the disk if they are not in memory."""
        return self.reader.get(topic, queue_id, offset, count_max, accept)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self.queues.find(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset after the last visible message of a queue; 0 if it is empty."""
        queue = self.queues.find(topic, queue_id)
        return queue.end.value if queue is not None else 0

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the first message of a queue; 0 if it is empty."""
        queue = self.queues.find(topic, queue_id)
        return queue.min_index if queue is not None else 0

    def delete_queues(self, topic: str, then: DeletionDone, until: int | None = None) -> None:
        """Delete a topic's queues with their files, and pass their number to ``then``. Messages
        stay in the log until it is trimmed. ``until``: keep queues with a message after that log
        offset."""
        self._deletions.delete(topic, then, until)

    def is_hot(self, topic: str, queue_id: int, index: int) -> bool:
        """Return True if a read of this message would be served from memory, or if there is no
        message."""
        queue = self.queues.find(topic, queue_id)
        unit = queue.unit(index) if queue is not None else None
        return unit is None or self.log.end - unit[0] <= self._config.limits.hot_size

    @property
    def hot_size(self) -> int:
        """Number of bytes at the end of the log that are assumed to be in memory."""
        return self._config.limits.hot_size

    @property
    def refusal(self) -> str | None:
        """Reason why clients' messages are refused, or None."""
        if self._sealed and not self._closed and self.durable.error is None:
            return COPY_REFUSAL
        return self.fault

    @property
    def fault(self) -> str | None:
        """Reason why the store accepts no writes, from clients or from a master, or None. Being a
        slave is no fault."""
        if self.durable.error is not None:
            return str(self.durable.error)
        return "the store is closed" if self._closed else self.space.refusal

    def _storable(self, properties: bytes, *, as_stored: bool) -> tuple[bytes, bool]:
        """Return the property text for an entry, without a CRC from an older entry, and True if a
        new CRC follows. Text before a CRC ends with its separator. Raises MessageError if the text
        is too long."""
        if CRC_NAME in properties:
            properties = without_crc(properties)
        ended = (
            properties + b"\x02"
            if self.with_crc and properties and not properties.endswith(b"\x02")
            else properties
        )
        if len(ended) <= self.properties_size_max:
            return ended, self.with_crc
        if as_stored and len(properties) <= PROPERTIES_SIZE_MAX:
            return properties, False
        raise self._too_long(len(ended))

    def _too_long(self, size: int) -> MessageError:
        return MessageError(
            f"the message properties take {size} bytes with those the broker adds; "
            f"{self.properties_size_max} are allowed"
        )

    def _no_room(self, error: OSError) -> Exception:
        """Return the error to raise for a new file that cannot be made."""
        if (
            error.filename is not None
            and Path(error.filename).parent in self._config.paths.commit_logs
        ):
            return self.space.no_room(error, Path(error.filename).parent, self.log.segment_size)
        size = min(GROWTH_MAX, self._config.queue_file_size)
        return self.space.no_room(error, self._config.paths.consume_queues, size)
