"""Selection of messages of a store, in log order.

The log decides which messages exist. Units only give the offset at which the walk begins, so that a
damaged queue hides no message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from turbopump.disk.read_only_disk import ReadOnlyDisk
from turbopump.errors import StoredMessageError
from turbopump.message.batch import inner_entries, is_wrapped
from turbopump.message.codec import decode_entry, entry_fault
from turbopump.message.entry import FLAG_BITS_AT, queue_id_of, queue_offset_of, topic_span
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import UNIQ_KEY
from turbopump.store.inspection.log_walk import LogWalk
from turbopump.store.inspection.queue_check import QueueUnits
from turbopump.store.inspection.store_files import StoreFiles
from turbopump.store.log.scanner import BadRange
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, UNIT


@dataclass(frozen=True, slots=True)
class Selection:
    """Condition that selects messages of a store.

    - ``topic``, ``queue_id``: None selects all topics or all queues.
    - ``start``: the smallest queue offset if a topic is given, else the smallest log offset.
    - ``keys``: select messages with any of these keys or unique ids. Empty selects all.
    """

    topic: str | None = None
    queue_id: int | None = None
    start: int = 0
    keys: tuple[str, ...] = ()


def select_messages(
    disk: ReadOnlyDisk, store: StoreFiles, wanted: Selection, on_bad: Callable[[BadRange], None]
) -> Iterator[ReceivedMessage]:
    """Yield the messages of a store that a condition selects, oldest first.

    ``on_bad`` gets every range of the log on the way that contains no valid message.
    """
    topic = wanted.topic.encode() if wanted.topic is not None else None
    needles = [key.encode() for key in wanted.keys]
    wanted_keys = set(wanted.keys)
    begin = wanted.start if topic is None else _begin(disk, store, wanted)
    for offset, entry in LogWalk(disk, store.segments, on_bad=on_bad).entries(begin):
        if topic is not None and entry[slice(*topic_span(entry))] != topic:
            continue
        if wanted.queue_id is not None and queue_id_of(entry) != wanted.queue_id:
            continue
        if (
            topic is not None
            and queue_offset_of(entry) < wanted.start
            and not is_wrapped(entry[FLAG_BITS_AT])
        ):
            continue
        if needles and not any(key in entry for key in needles):
            continue
        try:
            messages = [decode_entry(one) for one in inner_entries(entry)]
        except StoredMessageError as error:
            # texts that are not UTF-8, in an entry without a whole-entry CRC
            on_bad(BadRange(offset, offset + len(entry), str(error), store.segments[0]))
            continue
        for message in messages:
            if topic is not None and message.queue_offset < wanted.start:
                continue
            if not needles or wanted_keys & {message.properties.get(UNIQ_KEY), *message.keys}:
                yield message


def read_raw(
    disk: ReadOnlyDisk, store: StoreFiles, offset: int, size_max: int
) -> tuple[bytes, str | None]:
    """Return the bytes at a log offset, with a fault if these bytes are not a valid entry.

    A damaged entry has the length in its first field if that is possible, else ``size_max`` bytes.
    The bytes are empty if no segment contains the offset.
    """
    for segment in store.segments:
        if segment.start <= offset < segment.end:
            at = offset - segment.start
            with disk.open_file(segment.path) as file:
                size = int.from_bytes(file.read(at, 4))
                data = file.read(
                    at,
                    size
                    if 0 < size <= min(segment.size - at, 1 << 27)
                    else min(size_max, segment.size - at),
                )
            return data, entry_fault(data, offset)
    return b"", "no segment holds this offset"


def _begin(disk: ReadOnlyDisk, store: StoreFiles, wanted: Selection) -> int:
    """Return the log offset at which a walk must begin to meet every selected message.

    This is the smallest offset in the selected queues. If a queue does not agree with the log
    there, it is the start of the log.
    """
    begins = []
    for (topic, queue_id), files in store.queues.items():
        if topic != wanted.topic or wanted.queue_id not in (None, queue_id):
            continue
        units = QueueUnits(disk, files, window_units=64)
        index = max(wanted.start, units.first_at(store.log_start))
        if index >= units.max_index:
            continue
        unit = units.read(index)
        offset, size, _ = UNIT.unpack(unit) if unit else (0, 0, 0)
        entry = next(LogWalk(disk, store.segments).entries(offset, offset + 1), None)
        if entry is None or size == NO_MESSAGE_SIZE or queue_offset_of(entry[1]) != index:
            return store.log_start  # the queue cannot be trusted
        begins.append(offset)
    return min(begins, default=store.log_start)
