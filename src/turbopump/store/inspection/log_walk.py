"""Reading the log from one end to the other, past whatever is damaged.

The rule: what is good is decided by ``codec.entry_fault`` alone, entry by entry, in order; behind a
bad place the walk goes on at the next good entry, wherever it lies, and if none follows the log
ends there. Memory: one piece of ``READ_SIZE``. It must not know queues.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from turbopump.errors import StoredMessageError
from turbopump.message.batch import is_wrapped, unwrapped
from turbopump.message.codec import (
    FIXED_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    decode_entry,
    entry_fault,
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
from turbopump.store.inspection.queue_check import UNIT, QueueUnits
from turbopump.store.inspection.store_files import StoreFile, StoreFiles
from turbopump.store.log.commit_log import BLANK_SIZE_MIN
from turbopump.store.queues.consume_queue import NO_MESSAGE_SIZE
from turbopump.store.read_only_disk import ReadOnlyDisk, ReadOnlyFile

READ_SIZE: Final = 4 * 1024 * 1024
SECTOR: Final = 4096
"""Bytes given up at a time where the system cannot read."""

_LOOK: Final = struct.Struct(">II")
_CRC_NAME: Final = b"__CRC32#\x01"
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)
_MAGIC_START: Final = b"\xda\xa3\x20"
_ZEROS: Final = bytes(READ_SIZE)


class BadRange(NamedTuple):
    """Bytes ``start`` to ``end`` of the log hold no good entry. ``tail``: and none follows.
    ``unread``: the system could not read them."""

    start: int
    end: int
    fault: str
    segment: StoreFile
    tail: bool = False
    unread: bool = False


class LogWalk:
    """A walk over ``segments``. ``on_bad`` hears of every bad range, ``on_progress`` how many bytes
    of segments are done.

    ``requires_crc``: whether the entry at an offset must have a whole-entry CRC; None: none must.
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
        self._disk = disk
        self._segments = segments
        self._requires_crc = requires_crc
        self._on_bad = on_bad
        self._on_progress = on_progress
        self.end = segments[0].start if segments else 0
        """The end of the last good entry (or of the blank behind it), so far."""
        self._unread_end = 0

    def entries(self, start: int = 0, end: int = 1 << 62) -> Iterator[tuple[int, bytes]]:
        """(offset, entry) of every good entry that begins in ``start`` … ``end``. Raises OSError if
        a segment cannot be opened."""
        self.end = max(self.end, start)
        number = 0
        while number < len(self._segments):
            segment = self._segments[number]
            if segment.end <= start:
                number += 1
                continue
            if segment.start >= end:
                return
            with self._disk.open_file(segment.path) as file:
                follows = yield from self._segment_entries(
                    number, file, max(start, segment.start), end
                )
            if follows is None:
                return
            start = follows

    def _segment_entries(
        self, number: int, file: ReadOnlyFile, start: int, end: int
    ) -> Generator[tuple[int, bytes], None, int | None]:
        """The entries of one segment from ``start`` on; returns where to go on, None at the end of
        the log."""
        segment = self._segments[number]
        requires_crc = self._requires_crc
        base, limit, blank = (
            segment.start,
            min(segment.size, file.size),
            self._blank_size_min(segment),
        )
        at, piece_at, piece = start - base, start - base, b""
        while base + at < end:
            left = limit - at
            if left <= 0:
                return segment.end
            look = at - piece_at
            if look + 8 > len(piece):
                piece_at, piece, look = at, self._read(file, segment, at, READ_SIZE), 0
                self._on_progress(base + at)
            if left >= BLANK_SIZE_MIN:
                size, magic = _LOOK.unpack_from(piece, look)
                if magic in _MAGICS and FIXED_SIZE <= size <= left - blank:
                    if look + size > len(piece):
                        piece_at, piece, look = (
                            at,
                            self._read(file, segment, at, max(READ_SIZE, size)),
                            0,
                        )
                        self._on_progress(base + at)
                    entry = piece[look : look + size]
                    fault = entry_fault(entry, base + at)
                    if (
                        requires_crc
                        and fault is None
                        and entry[-20:-11] != _CRC_NAME
                        and requires_crc(base + at)
                    ):
                        fault = entry_fault(entry, base + at, crc_required=True)
                    if fault is None:
                        self.end = base + at + size
                        yield base + at, entry
                        at += size
                        continue
                elif magic == MAGIC_BLANK and size == left:
                    self.end = segment.end
                    return segment.end
                else:
                    fault = _head_fault(size, magic, left)
            else:
                fault = f"{left} bytes at the end of a segment are too few for a blank"
            follows = self._go_on(number, base + at, fault)
            if follows is None or not base <= follows < segment.end:
                return follows
            at = follows - base
        return None

    def _blank_size_min(self, segment: StoreFile) -> int:
        """What must follow every entry of a segment; nothing in a last one that lost its end, which
        recovery makes longer again."""
        cut_short = segment is self._segments[-1] and segment.size < self._segments[0].size
        return 0 if cut_short else BLANK_SIZE_MIN

    def _go_on(self, number: int, bad: int, fault: str) -> int | None:
        """Report the bad place and find the next good entry."""
        segment = self._segments[number]
        good, last = self._next_good(number, bad)
        if good is not None:
            self._on_bad(BadRange(bad, good, fault, segment))
        elif last is not None:
            self._on_bad(BadRange(bad, last + 1, fault, segment, tail=True))
        return good

    def _next_good(self, number: int, offset: int) -> tuple[int | None, int | None]:
        """(the first good entry at or after ``offset``, the last byte from there on that is not
        zero if there is none)."""
        last = None
        for segment in self._segments[number:]:
            with self._disk.open_file(segment.path) as file:
                at = file.data_from(max(offset - segment.start, 0))
                while at is not None and at < segment.size:
                    piece = self._read(file, segment, at, READ_SIZE, quiet=True)
                    if not piece:
                        break
                    if piece != _ZEROS[: len(piece)]:
                        found = self._good_in(file, segment, piece, at, offset - segment.start)
                        if found is not None:
                            return segment.start + found, None
                        last = segment.start + at + len(piece.rstrip(b"\0")) - 1
                    if at + len(piece) >= segment.size:
                        break
                    # a magic may lie across two pieces
                    at = file.data_from(at + max(len(piece) - 8, 1))
        return None, last

    def _good_in(
        self, file: ReadOnlyFile, segment: StoreFile, piece: bytes, piece_at: int, lowest: int
    ) -> int | None:
        start = 0
        while (found := piece.find(_MAGIC_START, start)) >= 0:
            start = found + 1
            at = piece_at + found - 4
            if at < max(lowest, 0):
                continue
            head = self._read(file, segment, at, 36, quiet=True)
            size = int.from_bytes(head[:4])
            if not FIXED_SIZE <= size <= segment.size - at - self._blank_size_min(segment):
                continue
            if int.from_bytes(head[28:36]) != segment.start + at:
                continue
            entry = self._read(file, segment, at, size, quiet=True)
            required = self._requires_crc is not None and self._requires_crc(segment.start + at)
            if entry_fault(entry, segment.start + at, crc_required=required) is None:
                return at
        return None

    def _read(
        self, file: ReadOnlyFile, segment: StoreFile, at: int, size: int, *, quiet: bool = False
    ) -> bytes:
        """Bytes of a segment; those that the system cannot read count as zero, and are reported
        unless ``quiet``."""
        try:
            return file.read(at, size)
        except OSError:
            pass
        parts = []
        end = min(at + size, file.size)
        while at < end:
            piece_end = min(at - at % SECTOR + SECTOR, end)
            try:
                parts.append(file.read(at, piece_end - at))
            except OSError as error:
                parts.append(bytes(piece_end - at))
                if not quiet and segment.start + at >= self._unread_end:
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


# --- What of an entry is checked against queues and indexes. It must be given good entries
# (``codec.entry_fault``), whole.

MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"

_HEAD: Final = struct.Struct(">12xi4xq8xi16xq20xI")
"""queueId, queueOffset, sysFlag; storeTimestamp and body length where v4 hosts have them."""

_TAGS, _UNIQ_KEY, _KEYS = (PAIR_END + name + NAME_END for name in (TAGS, UNIQ_KEY, KEYS))
_LONG: Final = struct.Struct(">q")
_INT: Final = struct.Struct(">I")
_V2: Final = MAGIC_V2 & 0xFF
_ANY_V6: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6


EntryFacts = tuple[str, int, int, int, int, int, list[str], str]
"""(topic, queueId, queueOffset, sysFlag, store time in ms, tags code, the texts it is indexed under
with its unique id first, all its properties). A plain tuple: made for every message of a store, a
named one would cost 0.3 µs more."""


def entry_facts(entry: bytes) -> EntryFacts:
    """Read them. Raises UnicodeDecodeError for a topic or properties that are no text. About 2
    µs."""
    queue_id, queue_offset, sys_flag, stored_ms, body_size = _HEAD.unpack_from(entry)
    body_end = 88 + body_size
    if sys_flag & _ANY_V6:
        stored_at = 56 + (12 if sys_flag & SysFlag.BORN_HOST_V6 else 0)
        at = stored_at + 28 + (12 if sys_flag & SysFlag.STORE_HOST_V6 else 0)
        stored_ms = _LONG.unpack_from(entry, stored_at)[0]
        body_end = at + 4 + _INT.unpack_from(entry, at)[0]
    topic_at = body_end + (2 if entry[7] == _V2 else 1)
    topic_end = topic_at + int.from_bytes(entry[body_end:topic_at])
    text = "\x02" + entry[topic_end + 2 :].decode()
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
    """``properties.property_value`` for a text that begins with 0x02 and a mark 0x02 NAME 0x01;
    empty if there is none. Half its time."""
    at = text.rfind(mark)
    if at < 0:
        return ""
    at += len(mark)
    end = text.find("\x02", at)
    value = text[at:end] if end >= 0 else text[at:]
    return value or property_value(text, mark[1:-1]) or ""


def entry_stored_ms(entry: bytes) -> int:
    """Only the store time."""
    stored_ms: int
    (stored_ms,) = _LONG.unpack_from(entry, 56 + (12 if entry[39] & SysFlag.BORN_HOST_V6 else 0))
    return stored_ms


def entry_topic(entry: bytes) -> bytes:
    """Only the topic's bytes."""
    sys_flag = entry[39]
    at = (
        84
        + (12 if sys_flag & SysFlag.BORN_HOST_V6 else 0)
        + (12 if sys_flag & SysFlag.STORE_HOST_V6 else 0)
    )
    body_end = at + 4 + _INT.unpack_from(entry, at)[0]
    topic_at = body_end + (2 if entry[7] == _V2 else 1)
    return entry[topic_at : topic_at + int.from_bytes(entry[body_end:topic_at])]


# --- Messages picked out of a log, in its order: by topic, queue, place and key. Those of an inner
# batch are picked one by one.
#
# The log alone decides what there is; a queue's units only say where to begin, so that a damaged
# queue hides nothing but costs a longer walk.


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
