"""After a kill the groups' offsets are those of the last save, some seconds old. The log knows
better: each checkpoint that came after says how far a pop had come. So a restart goes on where pops
were, and messages that were acknowledged in these seconds do not come again.

With the offsets it is saved how far the timers' queue was, as an offset of the revive group; the
records behind that are looked at. Ours: with Apache's broker such messages come again.
"""

from __future__ import annotations

import logging

from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.pop.records import CHECKPOINT_TAG, REVIVE_GROUP, Checkpoint
from turbopump.message.codec import decode_entries
from turbopump.message.properties import REAL_TOPIC
from turbopump.protocol import fastjson
from turbopump.store.message_store import MessageStore
from turbopump.store.timers.pending_timers import TIMER_TOPIC

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
