"""Walk over the whole log for tools, past all damage (``scanner.py``); fields of entries; selection
of messages.

``codec.entry_fault`` alone decides if an entry is good. Memory: one piece of ``READ_SIZE``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from turbopump.disk.read_only_disk import ReadOnlyDisk
from turbopump.errors import StoredMessageError
from turbopump.message.batch import inner_entries, is_wrapped
from turbopump.message.codec import decode_entry, entry_fault
from turbopump.message.entry import (
    BODY_AT,
    FLAG_BITS_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    queue_id_of,
    queue_offset_of,
    store_timestamp_of,
    topic_span,
)
from turbopump.message.java import tags_code
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import (
    KEYS,
    NAME_END,
    PAIR_END,
    TAGS,
    UNIQ_KEY,
    SysFlag,
    property_value,
)
from turbopump.store.files import StoreFile
from turbopump.store.inspection.queue_check import QueueUnits
from turbopump.store.inspection.report import Finding
from turbopump.store.inspection.store_files import StoreFiles
from turbopump.store.log.commit_log import BLANK_SIZE_MIN
from turbopump.store.log.scanner import BadRange, OpenSegment, SegmentWalk
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE, UNIT

READ_SIZE: Final = 4 * 1024 * 1024
SECTOR: Final = 4096
"""Number of bytes given up at a time if the system cannot read."""

_MAGICS: Final = (MAGIC_V1, MAGIC_V2)


class LogWalk(SegmentWalk[tuple[int, bytes]]):
    """Walk over ``segments`` that yields (offset, entry) of each good entry. Unreadable parts count
    as zeros and are reported.

    - ``on_progress``: gets the offset that is read.
    - ``requires_crc``: returns True if the entry at an offset must have a whole-entry CRC.
      None: no entry must have one.
    """

    def __init__(
        self,
        disk: ReadOnlyDisk,
        segments: Sequence[StoreFile],
        *,
        requires_crc: Callable[[int], bool] | None = None,
        on_bad: Callable[[BadRange], None] = lambda _bad: None,
        on_progress: Callable[[int], None] = lambda _size: None,
    ) -> None:
        super().__init__(
            segments,
            requires_crc=requires_crc,
            on_bad=on_bad,
            piece_size=READ_SIZE,
            blame=_head_fault,
        )
        self._disk = disk
        self._on_progress = on_progress
        self._unread_end = 0
        self._items = self._quick_entries

    def _open(self, segment: StoreFile) -> OpenSegment:
        return self._disk.open_file(segment.path)

    def _item(self, offset: int, entry: bytes) -> tuple[int, bytes]:
        return offset, entry

    def _quick_entries(self, offset: int, end: int) -> list[tuple[int, bytes]]:
        found = self._scanner.entries(offset, end)
        if found:
            last, entry = found[-1]
            self.end = last + len(entry)
        return found

    def _room(self, segment: StoreFile) -> int:
        """Return 0 for a last segment that lost its end, because recovery makes it longer again."""
        cut_short = segment is self._segments[-1] and segment.size < self._segments[0].size
        return 0 if cut_short else BLANK_SIZE_MIN

    def _read(
        self, file: OpenSegment, segment: StoreFile, at: int, size: int, *, ahead: bool
    ) -> bytes:
        try:
            data = file.read(at, size)
        except OSError:
            data = self._read_sectors(file, segment, at, size, ahead=ahead)
        if not ahead:
            self._on_progress(segment.start + at)
        return data

    def _read_sectors(
        self, file: OpenSegment, segment: StoreFile, at: int, size: int, *, ahead: bool
    ) -> bytes:
        parts = []
        end = min(at + size, file.size)
        while at < end:
            piece_end = min(at - at % SECTOR + SECTOR, end)
            try:
                parts.append(file.read(at, piece_end - at))
            except OSError as error:
                parts.append(bytes(piece_end - at))
                if not ahead and segment.start + at >= self._unread_end:
                    self._unread_end = segment.start + piece_end
                    fault = error.strerror or str(error)
                    self._on_bad(
                        BadRange(segment.start + at, self._unread_end, fault, segment, unread=True)
                    )
            at = piece_end
        return b"".join(parts)


def _head_fault(size: int, magic: int, left: int) -> str:
    if size == 0 and magic == 0:
        return "there are zeros where a message should begin"
    if magic == MAGIC_BLANK:
        return f"a blank of {size} bytes where {left} are left in the segment"
    if magic not in _MAGICS:
        return f"magic {magic:08X} is not a message's"
    return f"totalSize {size} cannot be: {left} bytes are left in the segment"


def bad_finding(bad: BadRange, store: StoreFiles) -> Finding:
    """Return the finding for a range without a good entry."""
    kind = "unreadable" if bad.unread else "log_torn_tail" if bad.tail else "log_damaged"
    return Finding(kind, bad.fault, store.relative(bad.segment.path), bad.start, bad.end)


# --- Fields of an entry that are checked against queues and indexes. The entry must be good
# (``codec.entry_fault``) and whole.

MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"

_HEAD: Final = struct.Struct(">12xi4xq8xi16xq20xI")
"""queueId, queueOffset, sysFlag; storeTimestamp and body length at their positions with IPv4
hosts."""

_TAGS, _UNIQ_KEY, _KEYS = (PAIR_END + name + NAME_END for name in (TAGS, UNIQ_KEY, KEYS))
_V2: Final = MAGIC_V2 & 0xFF
_ANY_V6: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6


EntryFacts = tuple[str, int, int, int, int, int, list[str], str]
"""(topic, queueId, queueOffset, sysFlag, store time in ms, tags code, index keys with the unique id
first, all properties). A plain tuple, because a named one costs 0.3 µs more for every message."""


def entry_facts(entry: bytes) -> EntryFacts:
    """Return the fields of an entry. Raises UnicodeDecodeError for a topic that is no text. About 2
    µs."""
    queue_id, queue_offset, sys_flag, stored_ms, body_size = _HEAD.unpack_from(entry)
    if sys_flag & _ANY_V6:
        stored_ms = store_timestamp_of(entry)
        topic_at, topic_end = topic_span(entry)
    else:
        body_end = BODY_AT + body_size
        topic_at = body_end + (2 if entry[7] == _V2 else 1)
        topic_end = topic_at + int.from_bytes(entry[body_end:topic_at])
    text = "\x02" + entry[topic_end + 2 :].decode(errors="replace")
    tags = last_value(text, _TAGS)
    unique = last_value(text, _UNIQ_KEY)
    words = last_value(text, _KEYS)
    keys = [unique] if unique else []
    if " " in words:
        keys += [word for word in words.split(" ") if word]
    elif words:
        keys.append(words)
    return (
        entry[topic_at:topic_end].decode(),
        queue_id,
        queue_offset,
        sys_flag,
        stored_ms,
        tags_code(tags) if tags else 0,
        keys,
        text,
    )


def last_value(text: str, mark: str) -> str:
    """Return the last value of a property; empty if there is none. Twice as fast as
    ``properties.property_value``. ``text`` must begin with 0x02, and ``mark`` is 0x02 NAME 0x01."""
    at = text.rfind(mark)
    if at < 0:
        return ""
    at += len(mark)
    end = text.find("\x02", at)
    value = text[at:end] if end >= 0 else text[at:]
    return value or property_value(text, mark[1:-1]) or ""


# --- Selection of messages, in log order. The log decides which messages exist. Units only give the
# begin of the walk, so that a damaged queue hides no message.


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of messages. ``start`` is a queue offset if a topic is given, else a log offset.
    ``keys``: select messages with any of these keys or unique ids."""

    topic: str | None = None
    queue_id: int | None = None
    start: int = 0
    keys: tuple[str, ...] = ()


def select_messages(
    disk: ReadOnlyDisk, store: StoreFiles, wanted: Selection, on_bad: Callable[[BadRange], None]
) -> Iterator[ReceivedMessage]:
    """Yield the selected messages, oldest first. ``on_bad`` gets every range on the way without a
    good message."""
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
    """Return (bytes at a log offset, their fault as an entry). A damaged entry has its own length
    if that is between 1 and ``size_max``, else ``size_max`` bytes. The bytes are empty if no
    segment holds the offset."""
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
    """Return the offset at which the walk must begin to meet every selected message: the smallest
    offset in its queues, if an entry is there."""
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
