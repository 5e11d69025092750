"""Which messages of a queue an ordered pop has taken: ``config/consumerOrderInfo.json``.

A queue is blocked for its group while one of them is neither acknowledged nor visible again. The
group's offset is that of the first that is not acknowledged; so what comes back comes again from
there, in order, and is counted. No checkpoints are written. Source: apache/rocketmq
``ConsumerOrderInfoManager``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from turbopump.broker.pop.places import GroupQueue
from turbopump.message.integers import Int64
from turbopump.message.pop_handle import QueueKey, kind_of, message_key, queue_key
from turbopump.protocol import fastjson
from turbopump.store.json_table import JsonTable


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
