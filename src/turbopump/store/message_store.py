"""Front door of the store: opening, appending, reading and closing.

``open`` recovers the directory (``opening.py``), and ``close`` leaves it clean. ``put`` and
``put_batch`` append messages and dispatch them at once; a slave's ``copied`` does the same with its
master's bytes. ``get`` reads a queue. Everything runs in one thread, without network. The owner of
the clock starts flushes, and threads finish them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from turbopump.clock import Clock
from turbopump.disk.disk import Disk
from turbopump.errors import MessageError, RoomInMakingError, StoreClosedError
from turbopump.message.codec import without_crc, write_entry
from turbopump.message.delivery_time import SCHEDULE_TOPIC
from turbopump.message.entry import CRC_NAME, CRC_SUFFIX_SIZE, FIXED_SIZE, TOPIC_SIZE_MAX_V1
from turbopump.message.properties import PROPERTIES_SIZE_MAX
from turbopump.store.append_latency import SLOW_S, AppendLatency
from turbopump.store.disk_space import with_free_bytes
from turbopump.store.log.commit_log import NewMessage as NewMessage
from turbopump.store.log.commit_log import PutResult as PutResult
from turbopump.store.opening import Opened, StoreHooks, open_parts
from turbopump.store.packed_batch import PackedBatch, write_batch
from turbopump.store.queues.consume_queue import UNIT_SIZE, ConsumeQueue, unpack_unit
from turbopump.store.queues.consume_queue_table import DeletionDone, QueueDeletions
from turbopump.store.queues.read_result import GetResult
from turbopump.store.sparse_files import GROWTH_MAX
from turbopump.store.store_config import StoreConfig

COPY_REFUSAL: Final = (
    "this broker is a slave (brokerRole=SLAVE) and takes no messages; send to its master"
)


class MessageStore:
    """Store of messages in an open directory. Create it with ``MessageStore.open``.

    - ``recovery``: result of the recovery at the start.
    - ``unchanged``: log offset up to which the log is unchanged since our last run ended.
    - ``copied``: appends bytes of the master's log. None unless this broker is a slave.
    - ``properties_size_max``: largest property text of a message in bytes. The CRC needs some
      of the space, as one more property.
    """

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        clock: Clock,
        opened: Opened,
        ends: ExitStack,
        on_slow_append: Callable[[float], None],
    ) -> None:
        """Take over the opened parts of a store. ``ends`` closes them later, in reverse order."""
        files = opened.files
        writing = opened.writing
        reading = opened.reading
        self._config = config
        self._disk = disk
        self._clock = clock
        self._monotonic = clock.monotonic
        self._closed = False
        self._sealed = config.is_copy
        """True if ``put`` is refused."""
        self.is_held = False
        """True between ``hold`` and ``resume``."""
        self.with_crc = config.writes_crc
        crc_size = CRC_SUFFIX_SIZE if self.with_crc else 0
        self._overhead = FIXED_SIZE - 16 + crc_size
        self.properties_size_max = PROPERTIES_SIZE_MAX - crc_size
        self.space = files.space
        self.start_reserve = files.start_reserve
        self.provenance = files.provenance
        self.log = files.log
        self.queues = files.queues
        self.queue_ends = files.queue_ends
        self.index = files.index
        self.confirmed = writing.confirmed
        self.durable = writing.confirmed.durable
        self.dispatcher = writing.dispatcher
        self.flusher = writing.flusher
        self.retention = writing.retention
        self.copied = opened.copied
        self.cold_reads = reading.cold_reads
        self.rebuild = reading.rebuild
        self.reader = reading.reader
        self.lookup = reading.lookup
        self.recovery = opened.recovery
        self.unchanged = opened.unchanged
        self.latency = AppendLatency(lambda: self.queues.units, on_slow_append)
        self._deletions = QueueDeletions(self.log, self.queues, self.queue_ends)
        self._ends = ends
        ends.push(self._note_clean_stop)
        ends.callback(files.close)
        ends.callback(self._flush_all)
        ends.callback(self.finish_background)

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
        """Open a store directory and recover it from a crash.

        The directory is locked. An abort file stays in it until ``close``, so that the next start
        recognizes a crash.

        - ``log_error``, ``log_info``, ``on_progress``, ``is_batch``: see ``StoreHooks``.
        - ``on_slow_append``: gets the seconds of each append that took ``SLOW_S`` or longer.

        Raises StoreLockedError if another store has locked the directory. Raises StoreDamagedError
        if files are missing or cannot belong together. Raises StoreError for an unusable directory,
        and OSError.
        """
        hooks = StoreHooks(log_error, log_info, on_progress, is_batch)
        with ExitStack() as ends:
            try:
                opened = open_parts(config, disk, clock, hooks, ends)
            except OSError as error:
                raise with_free_bytes(error, disk) from None
            return cls(config, disk, clock, opened, ends.pop_all(), on_slow_append)

    def finish_background(self) -> None:
        """Wait until the work in other threads has ended. No new work is started there.

        Other threads sync files and save tables. This is the first step of closing.
        """
        self.cold_reads.close()
        self.rebuild.reads.close()
        if self.index is not None:
            self.index.write_waiting()  # it may need a new file, whose name is then recorded
        self._disk.close()

    def close(self) -> None:
        """Write everything to the disk, mark the stop as clean, and release the directory.

        Raises OSError if a sync fails.
        """
        self._closed = self._sealed = True
        self._ends.close()

    def hold(self) -> None:
        """Store no more messages, because another replica becomes the master.

        Otherwise this log would get messages that the next master does not have. Replicas that have
        copied them would have to cut their logs. ``put`` raises RoomInMakingError until ``resume``.
        """
        self.is_held = self._sealed = True

    def resume(self) -> None:
        """Store messages again after ``hold``, because this replica is still the master."""
        self.is_held = False
        self._sealed = self._closed

    def _flush_all(self) -> None:
        if self.index is not None and self.index.give_up():
            self.provenance.index_names = None  # the next start fills the index again
        self.flusher.flush_all_now()

    def _note_clean_stop(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: object
    ) -> None:
        """Record a clean stop and remove the abort file.

        The call does nothing if a part could not be closed, and ``kind`` is the type of that
        exception.
        """
        if kind is None and self.durable.error is None and not self.flusher.queues_failed:
            self.queue_ends.end_notes(self.log.end, all_read=self.log.is_young)
            self.provenance.end_run(self.log.end)
            self._disk.remove(self._config.paths.abort)

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
        """Append one message to the log and to its queue.

        - ``own``: True if the broker itself delivers the message (an elapsed delay, a half message
          to check). Own messages are accepted while sends are refused for lack of space, if they
          fit into existing files, or new files leave the reserve free (``disk_space.py``).
        - ``as_stored``: True if the properties come from an older entry, perhaps one without a
          CRC. If they leave no space for a CRC, the entry gets none, and that is first recorded on
          the disk.
        - ``born_host``, ``store_host``: bytes from ``codec.encode_host``.

        Raises StoreClosedError if the store accepts no writes, for example on a full disk. Raises
        RoomInMakingError if the message may be stored a moment later, MessageError if no file can
        hold it, and OSError if a new file cannot be made.
        Cost: about 6 µs, including 1 µs for the CRC and 2 µs for the key index.
        """
        is_short = self.space.refusal is not None
        if self._sealed or self.durable.error is not None or (is_short and not own):
            raise self._refused()
        began = self._monotonic()
        # The entry is in the log before its unit is in the queue. Operations that may fail (a new
        # file, blocks of a queue file) come before the first written byte, so that no message is
        # stored in part.
        queue = self.queues.find_or_make(topic, queue_id)
        name = topic.encode()
        body = message.body
        properties = message.properties
        with_crc = self.with_crc
        size = self._overhead + len(born_host) + len(store_host) + len(body) + len(name)
        if len(name) > TOPIC_SIZE_MAX_V1:
            size += 1
        # Nearly every text ends with a separator, is short, and has no CRC, so it can be stored
        # unchanged. These three checks are cheaper than the call.
        if (
            CRC_NAME in properties
            or not properties.endswith(b"\x02")
            or len(properties) > self.properties_size_max
        ):
            properties, with_crc = self._storable(properties, as_stored=as_stored)
            if with_crc != self.with_crc:
                size -= CRC_SUFFIX_SIZE
                self.provenance.note_without_crc(self.durable.value)
        size += len(properties)
        if is_short:
            self._require_reserve(queue, size)
        log = self.log
        try:
            queue.make_room(1)
            offset = log.reserve(size)
        except OSError as error:
            raise self._no_room(error) from None
        now = self._clock.now_ms()
        index = queue.max_index
        buffer, at = log.write_position
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
        tags = message.tags_code
        if topic == SCHEDULE_TOPIC:
            tags = self.dispatcher.delayed_tags(message, now)
        self.dispatcher.dispatch(
            queue, index, offset, size, tags, sys_flag, now, message.unique, message.keys
        )
        took = self._monotonic() - began
        if took >= SLOW_S:
            self.latency.add_slow(took)
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
        """Append a whole batch of messages to one segment of the log. After an error, no message is
        appended.

        Return the position of the first message, and the packed queue units of all.

        Raises the same errors as ``put``. Cost: about 0.9 µs a message of 1 KiB in a batch of 32,
        with CRC and key index.
        """
        if self._sealed or self.durable.error is not None or self.space.refusal is not None:
            raise self._refused()
        began = self._monotonic()
        queue = self.queues.find_or_make(topic, queue_id)
        name = topic.encode()
        if batch.properties_size_max > self.properties_size_max:
            raise self._too_long(batch.properties_size_max)
        fixed = self._overhead + len(born_host) + len(store_host) + len(name)
        if len(name) > TOPIC_SIZE_MAX_V1:
            fixed += 1
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
        buffer, at = log.write_position
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
        took = self._monotonic() - began
        if took >= SLOW_S:
            self.latency.add_slow(took)
        return PutResult(index, offset, log.end), units

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        accept: Callable[[int], bool] | None = None,
    ) -> GetResult:
        """Return messages of a queue, beginning at ``offset``. ``accept`` selects messages by their
        tags codes.

        The call waits for the disk if the messages are not in memory.
        """
        return self.reader.get(topic, queue_id, offset, count_max, accept)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self.queues.find(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset after the last visible message of a queue, or 0 if the queue is
        empty."""
        queue = self.queues.find(topic, queue_id)
        return queue.end.value if queue is not None else 0

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the first message of a queue, or 0 if the queue is empty."""
        queue = self.queues.find(topic, queue_id)
        return queue.min_index if queue is not None else 0

    def delete_queues(self, topic: str, then: DeletionDone, until: int | None = None) -> None:
        """Delete all queues of a topic with their files.

        ``then`` gets the number of deleted queues, or the error. The messages stay in the log until
        it is trimmed. With ``until``, queues with a message after that log offset stay.
        """
        self._deletions.delete(topic, then, until)

    def is_hot(self, topic: str, queue_id: int, index: int) -> bool:
        """Return True if this message can be read from memory. A missing message counts as hot."""
        queue = self.queues.find(topic, queue_id)
        unit = queue.unit(index) if queue is not None else None
        return unit is None or self.log.end - unit[0] <= self._config.limits.hot_size

    @property
    def hot_size(self) -> int:
        """Number of bytes at the end of the log that are assumed to be in memory."""
        return self._config.limits.hot_size

    @property
    def refusal(self) -> str | None:
        """Reason why messages of clients are refused, or None if they are accepted."""
        if self._sealed and not (self._closed or self.is_held) and self.durable.error is None:
            return COPY_REFUSAL
        return self.fault

    @property
    def fault(self) -> str | None:
        """Reason why the store accepts no writes from clients or from a master, or None.

        That the broker is a slave is no such reason.
        """
        if self.durable.error is not None:
            return str(self.durable.error)
        return "the store is closed" if self._closed else self.space.refusal

    def _refused(self) -> Exception:
        """Return the error to raise while the store accepts no writes."""
        if self.is_held and self.fault is None:
            return RoomInMakingError("this replica is about to stop as the master")
        return StoreClosedError(self.refusal)

    def _storable(self, properties: bytes, *, as_stored: bool) -> tuple[bytes, bool]:
        """Return the property text for an entry, and True if a new CRC follows the text.

        A CRC from an older entry is left out. A text before a new CRC ends with its separator.
        Raises MessageError if the text is too long.
        """
        if CRC_NAME in properties:
            properties = without_crc(properties)
        ended = properties
        if self.with_crc and properties and not properties.endswith(b"\x02"):
            ended += b"\x02"
        if len(ended) <= self.properties_size_max:
            return ended, self.with_crc
        if as_stored and len(properties) <= PROPERTIES_SIZE_MAX:
            return properties, False
        raise self._too_long(len(ended))

    def _require_reserve(self, queue: ConsumeQueue, size: int) -> None:
        """Raise StoreClosedError if a message of the broker itself would use up the reserve of disk
        space."""
        if not self.space.has_room_beside_reserve(
            self.log.new_file_for(size), queue.room_missing(1)
        ):
            raise StoreClosedError(self.refusal)

    def _too_long(self, size: int) -> MessageError:
        return MessageError(
            f"the message properties take {size} bytes with those the broker adds; "
            f"{self.properties_size_max} are allowed"
        )

    def _no_room(self, error: OSError) -> Exception:
        """Return the error to raise when a new file cannot be made."""
        if (
            error.filename is not None
            and Path(error.filename).parent in self._config.paths.commit_logs
        ):
            return self.space.no_room(error, Path(error.filename).parent, self.log.segment_size)
        size = min(GROWTH_MAX, self._config.queue_file_size)
        return self.space.no_room(error, self._config.paths.consume_queues, size)
