"""Where the pops of each group are in each queue, and which queues are being popped just now.

A pop goes on behind the one before at once; the group's offset, which a restart begins at, follows
when the checkpoint is on the disk: what was popped is then either before the offset and in the log
of checkpoints, or not before it. RocketMQ: ``PopBufferMergeService.commitOffsets``,
``QueueLockManager``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.pop.records import CHECKPOINT_TAG, REVIVE_GROUP, Checkpoint
from turbopump.message.codec import decode_entries
from turbopump.message.handles import QueueKey, kind_of, message_key, queue_key
from turbopump.message.java import Int64
from turbopump.message.properties import REAL_TOPIC
from turbopump.protocol import fastjson
from turbopump.store.json_table import JsonTable
from turbopump.store.message_store import MessageStore
from turbopump.store.timers.pending_timers import TIMER_TOPIC
from turbopump.store.watermark import Watermark


class GroupQueue(NamedTuple):
    """A queue of a topic as one group sees it."""

    group: str
    topic: str
    queue_id: int


class FlushedOffsets:
    """Offsets that become the group's when the log is on the disk up to a place. ``settled`` is
    told after each."""

    def __init__(self, offsets: ConsumerOffsets, flushed: Watermark) -> None:
        self._offsets = offsets
        self._flushed = flushed
        self._ahead: dict[GroupQueue, deque[tuple[int, int]]] = {}
        self.settled: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._ahead)

    def ahead(self, place: GroupQueue) -> int | None:
        """The newest offset of a queue that is not the group's yet."""
        waiting = self._ahead.get(place)
        return waiting[-1][1] if waiting else None

    def commit(self, place: GroupQueue, offset: int, log_end: int) -> None:
        """Commit ``offset`` as soon as the log is on the disk up to ``log_end``, and those before
        it are committed."""
        waiting = self._ahead.get(place)
        if waiting:
            log_end = max(log_end, waiting[-1][0])
        elif self._flushed.value >= log_end:
            self._offsets.commit(*place, offset)
            return
        else:
            waiting = self._ahead[place] = deque()
        waiting.append((log_end, offset))
        if len(waiting) == 1:
            self._flushed.when(log_end, lambda: self._reached(place, waiting))

    def forget(self, place: GroupQueue) -> None:
        """Commit nothing more of what was to be committed."""
        self._ahead.pop(place, None)

    def _reached(self, place: GroupQueue, waiting: deque[tuple[int, int]]) -> None:
        if self._ahead.get(place) is not waiting or self._flushed.error is not None:
            return
        offset = None
        while waiting and waiting[0][0] <= self._flushed.value:
            offset = waiting.popleft()[1]
        if offset is not None:
            self._offsets.commit(*place, offset)
        if waiting:
            self._flushed.when(waiting[0][0], lambda: self._reached(place, waiting))
        else:
            del self._ahead[place]
        self.settled()


class PopOffsets:
    """Next offsets and locks."""

    def __init__(self, offsets: ConsumerOffsets, flushed: Watermark) -> None:
        self._offsets = offsets
        self.flushed_offsets = FlushedOffsets(offsets, flushed)
        self._locked: set[GroupQueue] = set()

    def find(self, place: GroupQueue) -> int | None:
        """The next offset to pop; None: the group has never been here."""
        ahead = self.flushed_offsets.ahead(place)
        committed = self._offsets.find(*place)
        if ahead is None or committed is None:
            return committed if ahead is None else ahead
        return max(ahead, committed)

    def take_reset(self, place: GroupQueue) -> int | None:
        """Where an operator wants the group to go on, once; None: nowhere else."""
        offset = self._offsets.take_reset(*place)
        if offset is not None:
            self.flushed_offsets.forget(place)
        return offset

    def begin(self, place: GroupQueue, offset: int) -> None:
        """Go on at ``offset``, which may be before the place until now."""
        self.flushed_offsets.forget(place)
        self._offsets.commit(*place, offset)

    def popped(self, place: GroupQueue, offset: int, log_end: int) -> None:
        """Go on at ``offset``: what is before it has a checkpoint, which ends at ``log_end`` of the
        log, or is not for this group."""
        self.flushed_offsets.commit(place, offset, log_end)

    def lock(self, place: GroupQueue) -> bool:
        """False if somebody has it."""
        if place in self._locked:
            return False
        self._locked.add(place)
        return True

    def unlock(self, place: GroupQueue) -> None:
        self._locked.discard(place)

    def is_locked(self, place: GroupQueue) -> bool:
        return place in self._locked


# --- Which messages are popped and neither acknowledged nor put back, by group and queue: how many,
# and whether that is too many.
#
# Only what was popped since the start is counted, and nothing if there is no limit; nor what is
# popped in order, where no more is taken of a queue while some is out. Pure. RocketMQ:
# ``PopInflightMessageCounter``, which keeps a number alone, and counts an acknowledgement that comes
# twice twice.


class InFlight:
    """``limit``: a queue of which more than that are out is not popped by this group; None: there
    is no limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._out: dict[GroupQueue, set[int]] = {}

    def count(self, place: GroupQueue) -> int:
        """How many are out."""
        return len(self._out.get(place, ()))

    def is_full(self, place: GroupQueue) -> bool:
        """Whether more are out than may be."""
        return self._limit is not None and self.count(place) > self._limit

    def took(self, place: GroupQueue, offsets: Iterable[int]) -> None:
        """These queue offsets are popped."""
        if self._limit is not None:
            self._out.setdefault(place, set()).update(offsets)

    def ended(self, place: GroupQueue, offsets: Iterable[int]) -> bool:
        """They are acknowledged, or put back; True if the queue may be popped again now."""
        out = self._out.get(place)
        if out is None:
            return False
        was_full = self.is_full(place)
        out.difference_update(offsets)
        if not out:
            del self._out[place]
        return was_full and not self.is_full(place)

    def forget(self, place: GroupQueue) -> None:
        """The group goes on elsewhere: what is out will not be waited for."""
        self._out.pop(place, None)


# --- Which messages of a queue an ordered pop has taken: ``config/consumerOrderInfo.json``.
#
# A queue is blocked for its group while one of them is neither acknowledged nor visible again. The
# group's offset is that of the first that is not acknowledged; so what comes back comes again from
# there, in order, and is counted. No checkpoints are written. Source: apache/rocketmq
# ``ConsumerOrderInfoManager``.


class TakenInOrder(msgspec.Struct, kw_only=True):
    """What the last ordered pop of a queue took: ``o`` in the file is the first offset and the
    distances of the others. ``following``, ours, is where the queue goes on behind it, if that is
    not the next offset: an inner batch has several."""

    pop_time: Int64 = msgspec.field(default=0, name="popTime")
    invisible: Int64 | None = msgspec.field(default=None, name="i")
    distances: list[int] | None = msgspec.field(default=None, name="o")
    visible_at: dict[int, int] | None = msgspec.field(default=None, name="ot")
    counts: dict[int, int] | None = msgspec.field(default=None, name="oc")
    last_consumed: Int64 = msgspec.field(default=0, name="l")
    done: Int64 = msgspec.field(default=0, name="cm")
    attempt_id: str | None = msgspec.field(default=None, name="a")
    following: int | None = msgspec.field(default=None, name="next")

    def offsets(self) -> list[int]:
        first, *rest = self.distances or [0]
        return [first, *(first + distance for distance in rest)] if self.distances else []

    def left(self) -> list[int]:
        """Offsets that are not acknowledged."""
        return [offset for bit, offset in enumerate(self.offsets()) if not self.done >> bit & 1]

    def blocked_until(self, now_ms: int) -> int | None:
        """When the last of them is visible again; None: none is invisible."""
        base = self.pop_time + (self.invisible or 0)
        times = [(self.visible_at or {}).get(offset, base) for offset in self.left()]
        return max((time for time in times if time > now_ms), default=None)


class OrderInfoTable(msgspec.Struct, kw_only=True):
    """The file: ``topic@group`` to queue id to what is taken."""

    table: dict[str, dict[int, TakenInOrder]] = msgspec.field(default_factory=dict)


class OrderInfo:
    """What ordered pops have taken, by group and queue."""

    def __init__(self, file: JsonTable) -> None:
        self._file = file
        self._table: dict[str, dict[int, TakenInOrder]] = {}
        self._dirty = False

    def load(self) -> None:
        """Read the file. Raises OSError."""
        saved = self._file.load(lambda data: fastjson.decode(data, OrderInfoTable), OrderInfoTable)
        self._table = {key: dict(queues) for key, queues in saved.table.items()}

    def blocked_until(
        self, place: GroupQueue, now_ms: int, attempt_id: str | None = None
    ) -> int | None:
        """Until when no ordered pop may have anything of the queue; None: it may now. Who comes
        with the attempt id of the last pop may: it has not got the answer."""
        taken = self._find(place)
        if taken is None or (attempt_id is not None and taken.attempt_id == attempt_id):
            return None
        return taken.blocked_until(now_ms)

    def took(
        self,
        place: GroupQueue,
        offsets: Sequence[int],
        pop_time_ms: int,
        invisible_ms: int,
        attempt_id: str | None,
        now_ms: int,
        following: int,
    ) -> list[tuple[QueueKey, int]]:
        """Note what an ordered pop takes, and where the queue goes on; entries for
        ``orderCountInfo``: how often each message came."""
        last = self._find(place)
        counts: dict[int, int] = {}
        if last is not None and last.attempt_id is not None and last.attempt_id == attempt_id:
            counts = dict(last.counts or {})
        elif last is not None:
            known = frozenset(last.offsets())
            counts = {
                offset: (last.counts or {}).get(offset, 0) + 1
                for offset in offsets
                if offset in known
            }
        first = offsets[0]
        self._table.setdefault(f"{place.topic}@{place.group}", {})[place.queue_id] = TakenInOrder(
            pop_time=pop_time_ms,
            invisible=invisible_ms,
            distances=[first, *(offset - first for offset in offsets[1:])],
            counts=counts,
            last_consumed=now_ms,
            attempt_id=attempt_id,
            following=following if following > offsets[-1] + 1 else None,
        )
        self._dirty = True
        kind = kind_of(place.topic)
        entries = [
            (message_key(kind, place.queue_id, offset), count) for offset, count in counts.items()
        ]
        least = min(counts.values(), default=0) if len(counts) == len(offsets) else 0
        return [*entries, (queue_key(kind, place.queue_id), least)]

    def acknowledge(
        self, place: GroupQueue, offset: int, pop_time_ms: int, stands: int | None
    ) -> int | None:
        """Where the group stands when this message is done; None: where it ``stands``, for the
        message was taken again since. Raises LookupError if the last pop did not take it.

        What was taken may have been forgotten, by a kill. RocketMQ: then the group goes on behind
        any message that is done, also if some before it are not, and nobody gets those. Here it
        does so only behind the next one; the others come again."""
        taken = self._find(place)
        if taken is None:
            return offset + 1 if offset == stands else None
        if taken.pop_time != pop_time_ms:
            return None
        taken.done |= (
            1 << taken.offsets().index(offset) if offset in taken.offsets() else _missing(offset)
        )
        self._dirty = True
        left = taken.left()
        return left[0] if left else taken.following or taken.offsets()[-1] + 1

    def change(self, place: GroupQueue, offset: int, pop_time_ms: int, visible_at_ms: int) -> None:
        """A message is to come back at another time."""
        taken = self._find(place)
        if taken is not None and taken.pop_time == pop_time_ms:
            taken.visible_at = {**(taken.visible_at or {}), offset: visible_at_ms}
            self._dirty = True

    def forget(self, place: GroupQueue) -> None:
        """The group goes on elsewhere."""
        if (
            self._table.get(f"{place.topic}@{place.group}", {}).pop(place.queue_id, None)
            is not None
        ):
            self._dirty = True

    def keep_only(self, topics: Collection[str], groups: Collection[str]) -> None:
        """Forget what topics or groups had that are no more."""
        for key in list(self._table):
            topic, _, group = key.partition("@")
            if topic not in topics or group not in groups:
                del self._table[key]
                self._dirty = True

    def save(self) -> None:
        """Write the file, beside the loop, if anything has changed."""
        if self._dirty:
            self._dirty = False
            self._file.save(self._encode())

    def save_now(self) -> None:
        if self._table or self._dirty:
            self._file.save_now(self._encode())

    def _encode(self) -> bytes:
        return fastjson.encode_indented(OrderInfoTable(table=self._table))

    def _find(self, place: GroupQueue) -> TakenInOrder | None:
        return self._table.get(f"{place.topic}@{place.group}", {}).get(place.queue_id)


def _missing(offset: int) -> int:
    raise LookupError(f"offset {offset} was not taken by the last pop of its queue")


# --- After a kill the groups' offsets are those of the last save, some seconds old. The log knows
# better: each checkpoint that came after says how far a pop had come. So a restart goes on where pops
# were, and messages that were acknowledged in these seconds do not come again.
#
# With the offsets it is saved how far the timers' queue was, as an offset of the revive group; the
# records behind that are looked at. Ours: with Apache's broker such messages come again.

_AT_ONCE = 32

log = logging.getLogger(__name__)


class TimersMark:
    """How far the timers' queue was when offsets were saved the time before last: whatever was
    popped by then is in the offsets. To be made behind ``recover_places``."""

    def __init__(self, store: MessageStore, offsets: ConsumerOffsets) -> None:
        self._store = store
        self._offsets = offsets
        self._last = store.max_offset(TIMER_TOPIC, 0)

    def note(self, *, popped: bool) -> None:
        """To be called as often as offsets are saved. ``popped``: whether anything ever was."""
        last, self._last = self._last, self._store.max_offset(TIMER_TOPIC, 0)
        if popped and self._offsets.find(REVIVE_GROUP, TIMER_TOPIC, 0) != last:
            self._offsets.commit(REVIVE_GROUP, TIMER_TOPIC, 0, last)


def recover_places(store: MessageStore, offsets: ConsumerOffsets, revive_topic: str) -> int:
    """Move groups on behind what checkpoints say was popped; how many moved. To be called before
    anybody is served."""
    at = offsets.find(REVIVE_GROUP, TIMER_TOPIC, 0)
    if at is None:
        return 0
    reached: dict[tuple[str, str, int], int] = {}
    while at < store.max_offset(TIMER_TOPIC, 0):
        result = store.get(TIMER_TOPIC, 0, at, _AT_ONCE)
        if result.next_offset <= at:
            break
        for message in decode_entries(result.data):
            if message.tags != CHECKPOINT_TAG or message.properties.get(REAL_TOPIC) != revive_topic:
                continue
            try:
                record = fastjson.decode(message.body, Checkpoint)
            except fastjson.FastjsonError:
                continue
            place = (record.group or "", record.topic or "", record.queue_id)
            current = reached.get(place, offsets.find(*place))
            # None: the group had never been there. Another offset: it is counted already, or the
            # group came there in another way.
            if current is None or current == record.start_offset:
                following = max(record.offsets(), default=record.start_offset - 1) + 1
                if following <= store.max_offset(place[1], place[2]):
                    reached[place] = following
        at = result.next_offset
    for (group, topic, queue_id), offset in reached.items():
        log.info(
            "pops go on where they were group=%s topic=%s queue=%d offset=%d",
            group,
            topic,
            queue_id,
            offset,
        )
        offsets.commit(group, topic, queue_id, offset)
    return len(reached)
