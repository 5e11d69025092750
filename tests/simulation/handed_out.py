"""Every message that a broker handed out to a pop, as its log tells: also with an answer that
nobody got.

A pop is written down before it is answered, so the checkpoints of the log are all that was handed
out, each for a time of its own; a change of that time is one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.unit.broker.popping import Popped
from tests.unit.broker.talking import Client

from turbopump.broker.pop.records import CHECKPOINT_TAG, REVIVE_TOPIC_PREFIX, Checkpoint
from turbopump.config.broker_config import BrokerConfig
from turbopump.message.codec import decode_entries
from turbopump.message.handles import PopHandle, pop_retry_topic
from turbopump.message.message import ReceivedMessage
from turbopump.protocol import fastjson
from turbopump.store.timers.pending_timers import TIMER_TOPIC

TOPIC, GROUP = "T", "g"
REVIVE_TOPIC, REVIVE_QUEUES = (
    REVIVE_TOPIC_PREFIX + BrokerConfig().broker_cluster_name,
    BrokerConfig().revive_queue_num,
)
RETRY = pop_retry_topic(TOPIC, GROUP)


class Place(NamedTuple):
    """Where one message of one pop stands. ``pop_time_ms`` tells the pop."""

    topic: str
    queue_id: int
    offset: int
    pop_time_ms: int


def place_of(one: Popped) -> Place:
    """Of a message that a consumer has, by its receipt."""
    handle: PopHandle = one.handle
    assert handle.queue_offset is not None
    return Place(
        handle.real_topic(TOPIC, GROUP), handle.queue_id, handle.queue_offset, handle.pop_time_ms
    )


@dataclass(frozen=True)
class HandOut:
    """``attempt`` is how often the message had come back before; ``stored_ms`` when it did the last
    time."""

    body: bytes
    attempt: int
    stored_ms: int
    visible_ms: int

    def returns_as(self, other: HandOut) -> bool:
        """Whether ``other`` hands out what came back of this one."""
        return (other.body, other.attempt) == (
            self.body,
            self.attempt + 1,
        ) and other.stored_ms >= self.visible_ms


async def handed_out(client: Client, queues: int) -> dict[Place, HandOut]:
    """What the log of a broker tells."""
    messages = {
        (TOPIC, queue_id): await _queue(client, TOPIC, queue_id) for queue_id in range(queues)
    }
    messages[RETRY, 0] = await _queue(client, RETRY, 0)
    records = list((await _queue(client, TIMER_TOPIC, 0)).values())
    for revive_queue_id in range(REVIVE_QUEUES):  # what is due at once never was with the timers
        records += (await _queue(client, REVIVE_TOPIC, revive_queue_id)).values()
    found = {}
    for record in records:
        if record.tags != CHECKPOINT_TAG:
            continue
        checkpoint = fastjson.decode(record.body, Checkpoint)
        assert checkpoint.topic is not None
        for offset in checkpoint.offsets():
            message = messages[checkpoint.topic, checkpoint.queue_id][offset]
            place = Place(checkpoint.topic, checkpoint.queue_id, offset, checkpoint.pop_time)
            found[place] = HandOut(
                message.body,
                message.reconsume_times,
                message.store_timestamp,
                visible_ms=checkpoint.visible_at_ms,
            )
    return found


async def _queue(client: Client, topic: str, queue_id: int) -> dict[int, ReceivedMessage]:
    """By queue offset. A power cut leaves holes."""
    found: dict[int, ReceivedMessage] = {}
    offset = 0
    while True:
        answer, header = await client.pull(offset, topic=topic, queue_id=queue_id)
        found |= {message.queue_offset: message for message in decode_entries(answer.body)}
        if header.next_begin_offset <= offset:
            return found
        offset = header.next_begin_offset
