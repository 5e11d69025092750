"""Writing checkpoints and acknowledgements into the log: timer messages for the revive topic.

One rule: whoever has a record's ``Placed`` may rely on it as soon as the log is on the disk so far.
It must not know what becomes of them (``reviving.py``). Source: apache/rocketmq
``PopMessageProcessor.buildCkMsg``, ``AckMessageProcessor.appendAck``.
"""

from __future__ import annotations

from turbopump.broker.detours import Parcel
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.pop.records import (
    ACK_TAG,
    AHEAD_MS,
    CHECKPOINT_TAG,
    Acknowledgement,
    Checkpoint,
    PopKey,
    revive_topic,
)
from turbopump.broker.schedule.timer_detour import timed
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import MessageError
from turbopump.message.properties import TAGS, TIMER_DELIVER_MS, UNIQ_KEY, encode_properties
from turbopump.protocol import fastjson
from turbopump.remoting.router import Response
from turbopump.store.log.commit_log import Placed


class ReviveLog:
    """The revive topic of a broker, as a place to write to."""

    def __init__(self, config: BrokerConfig, forwarding: Forwarding, clock: Clock) -> None:
        self._config = config
        self._forwarding = forwarding
        self._clock = clock
        self.topic = revive_topic(config.broker_cluster_name)
        self._popped = 0

    def next_queue(self) -> int:
        """The queue for the records of the next pop: one after the other."""
        self._popped += 1
        return (self._popped - 1) % self._config.revive_queue_num

    @property
    def used(self) -> bool:
        """Whether somebody has popped since the start."""
        return self._popped > 0

    async def checkpoint(self, queue_id: int, checkpoint: Checkpoint) -> Placed:
        """Write one down. Raises MessageError if its messages are to come back too late for a
        timer, StoreError, OSError."""
        unique_id = checkpoint.key(self._config.broker_name).unique_id(
            checkpoint.start_offset, CHECKPOINT_TAG
        )
        deliver = checkpoint.visible_at_ms - AHEAD_MS
        return await self._append(
            queue_id,
            CHECKPOINT_TAG,
            unique_id,
            fastjson.encode(checkpoint),
            deliver,
            for_client=True,
        )

    async def acknowledge(
        self, queue_id: int, key: PopKey, offsets: list[int], visible_at_ms: int
    ) -> Placed:
        """Write down that messages of a checkpoint are done. Raises as ``checkpoint`` does."""
        ack = Acknowledgement.of(key, offsets)
        first = ack.offset if ack.tag == ACK_TAG else f"[{', '.join(map(str, offsets))}]"
        return await self._append(
            queue_id, ack.tag, key.unique_id(first, ack.tag), fastjson.encode(ack), visible_at_ms
        )

    async def _append(
        self,
        queue_id: int,
        tag: str,
        unique_id: str,
        body: bytes,
        deliver_ms: int,
        *,
        for_client: bool = False,
    ) -> Placed:
        text = encode_properties(
            {TAGS: tag, UNIQ_KEY: unique_id, TIMER_DELIVER_MS: str(deliver_ms)}
        )
        parcel = timed(Parcel(self.topic, queue_id, text, 0), self._config, self._clock.now_ms())
        if isinstance(parcel, Response):
            raise MessageError(parcel.remark or "the timers do not take it")
        return await self._forwarding.append(
            parcel.topic, parcel.queue_id, body, parcel.properties, for_client=for_client
        )
