"""Messages picked out of a log, in its order: by topic, queue, place and key. Those of an inner
batch are picked one by one.

The log alone decides what there is; a queue's units only say where to begin, so that a damaged
queue hides nothing but costs a longer walk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from turbopump.errors import StoredMessageError
from turbopump.message.codec import decode_entry, entry_fault
from turbopump.message.inner_batch import is_wrapped, unwrapped
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import UNIQ_KEY
from turbopump.store.consume_queue import NO_MESSAGE_SIZE
from turbopump.store.inspection.entry_facts import entry_topic
from turbopump.store.inspection.log_walk import BadRange, LogWalk
from turbopump.store.inspection.queue_check import UNIT, QueueUnits
from turbopump.store.inspection.store_files import StoreFiles
from turbopump.store.read_only_disk import ReadOnlyDisk


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages. ``start`` is a queue offset if a topic is given, else an offset of the log;
    ``keys``: messages with any of them (unique ids count as keys)."""

    topic: str | None = None
    queue_id: int | None = None
    start: int = 0
    keys: tuple[str, ...] = ()


def select_messages(
    disk: ReadOnlyDisk, store: StoreFiles, wanted: Selection, on_bad: Callable[[BadRange], None]
) -> Iterator[ReceivedMessage]:
    """The messages wanted, oldest first. ``on_bad`` hears of every place on the way that holds no
    good message."""
    topic = wanted.topic.encode() if wanted.topic is not None else None
    needles = [key.encode() for key in wanted.keys]
    wanted_keys = set(wanted.keys)
    begin = wanted.start if topic is None else _begin(disk, store, wanted)
    for offset, entry in LogWalk(disk, store.segments, on_bad=on_bad).entries(begin):
        if topic is not None and entry_topic(entry) != topic:
            continue
        if wanted.queue_id is not None and int.from_bytes(entry[12:16]) != wanted.queue_id:
            continue
        if (
            topic is not None
            and int.from_bytes(entry[20:28]) < wanted.start
            and not is_wrapped(entry[39])
        ):
            continue
        if needles and not any(key in entry for key in needles):
            continue
        try:
            messages = [decode_entry(one) for one in unwrapped(entry)]
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
    """(bytes at an offset of the log, what is wrong with them as an entry). A damaged entry is
    given in its own length if that is between 1 and ``size_max``, else in ``size_max`` bytes; empty
    if no segment holds the offset."""
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
    """Where the walk must begin so as to meet every message wanted: the smallest offset its queues
    give, if there is an entry."""
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
        if entry is None or size == NO_MESSAGE_SIZE or int.from_bytes(entry[1][20:28]) != index:
            return store.log_start  # the queue cannot be trusted
        begins.append(offset)
    return min(begins, default=store.log_start)
