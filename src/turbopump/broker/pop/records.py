"""Records of POP. A checkpoint lists popped messages, and an acknowledgement ends some of them.

Each record is the JSON body of a message of the revive topic. The message's tag is the kind of
record: ``ck`` for a checkpoint, ``ack`` or ``bAck`` for an acknowledgement of one message or of
several.

A checkpoint is delivered one second before its messages become visible again, and an
acknowledgement at that time. So the checkpoint arrives first. Names are Apache's, so both brokers
can open a store directory of the other. Source: apache/rocketmq ``PopCheckPoint``, ``AckMsg``,
``BatchAckMsg``, ``PopAckConstants``, ``PopMessageProcessor.genCkUniqueId``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from turbopump.broker.counters.pop import ACKNOWLEDGEMENT, CHECKPOINT, PopCounts
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.interceptors import Destination
from turbopump.broker.schedule.destinations import by_way_of_timer
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import MessageError
from turbopump.message.java import Int32, Int64
from turbopump.message.properties import TAGS, TIMER_DELIVER_MS, UNIQ_KEY, encode_properties
from turbopump.message.rules import SYSTEM_TOPIC_PREFIX
from turbopump.protocol import fastjson
from turbopump.remoting.response import Response
from turbopump.store.log.commit_log import PutResult

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
CHECKPOINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
AHEAD_MS: Final = 1000
"""Milliseconds by which a checkpoint is delivered before its messages become visible again.

RocketMQ: ``ackTimeInterval``.
"""
COUNT_MAX: Final = 32
"""Maximum messages in one checkpoint."""


REVIVE_TOPIC_PREFIX: Final = f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_"
"""First part of the name of a revive topic. The name of the cluster follows."""


class PopKey(NamedTuple):
    """Key of a pop. A checkpoint and its acknowledgements have the same key."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    broker_name: str

    def unique_id(self, first: object, tag: str) -> str:
        """Return the property ``UNIQ_KEY`` for the message that stores a record.

        - ``first``: the offset, or list of offsets, that the record is about.
        """
        of = f"{self.topic}@{self.queue_id}@{first}@{self.group}@{self.pop_time_ms}"
        return f"{of}@{self.broker_name}@{tag}"


class Record(msgspec.Struct, kw_only=True):
    """Common fields of checkpoints and acknowledgements. These fields identify the pop."""

    start_offset: Int64 = msgspec.field(default=0, name="so")
    pop_time: Int64 = msgspec.field(default=0, name="pt")
    queue_id: Int32 = msgspec.field(default=0, name="q")
    topic: str | None = msgspec.field(default=None, name="t")
    group: str | None = msgspec.field(default=None, name="c")
    broker_name: str | None = msgspec.field(default=None, name="bn")

    def key(self, broker_name: str) -> PopKey:
        """Return the key of the pop to which this record belongs.

        - ``broker_name``: the name of this broker, for old records that have none.
        """
        return PopKey(
            self.topic or "",
            self.group or "",
            self.queue_id,
            self.start_offset,
            self.pop_time,
            self.broker_name or broker_name,
        )


class Checkpoint(Record, kw_only=True):
    """Record of one pop: the messages that it returned from one queue.

    The queue offsets of the messages are ``start_offset`` plus each of ``distances``. Without
    ``distances``, they are ``count`` consecutive offsets. Bits of ``bit_map`` mark messages that
    were acknowledged before the checkpoint was written.
    """

    invisible_time: Int64 = msgspec.field(default=0, name="it")
    bit_map: Int32 = msgspec.field(default=0, name="bm")
    count: Int32 = msgspec.field(default=0, name="n")
    revive_offset: Int64 = msgspec.field(default=0, name="ro")
    distances: list[int] | None = msgspec.field(default=None, name="d")
    put_times: str | None = msgspec.field(default=None, name="rp")

    @property
    def visible_at_ms(self) -> int:
        return self.pop_time + self.invisible_time

    def offsets(self) -> list[int]:
        """Return the queue offsets of the popped messages."""
        distances: Sequence[int] = self.distances or range(min(self.count, COUNT_MAX))
        return [self.start_offset + distance for distance in distances]

    def unacknowledged(self) -> list[int]:
        return [offset for bit, offset in enumerate(self.offsets()) if not self.bit_map >> bit & 1]


class Acknowledgement(Record, kw_only=True):
    """Record of an acknowledgement, for one or several popped messages.

    - ``offset``: the queue offset of a single message.
    - ``offsets``: the queue offsets of several messages, or None for a single message.
    """

    offset: Int64 = msgspec.field(default=0, name="ao")
    offsets: list[int] | None = msgspec.field(default=None, name="aol")

    @classmethod
    def of(cls, key: PopKey, offsets: list[int]) -> Acknowledgement:
        """Return an acknowledgement of the messages at these offsets. A single offset is stored in
        ``offset``."""
        single = len(offsets) == 1
        return cls(
            offset=offsets[0] if single else -1,
            start_offset=key.start_offset,
            group=key.group,
            topic=key.topic,
            queue_id=key.queue_id,
            pop_time=key.pop_time_ms,
            broker_name=key.broker_name,
            offsets=None if single else offsets,
        )

    @property
    def tag(self) -> str:
        return ACK_TAG if self.offsets is None else BATCH_ACK_TAG


class ReviveLog:
    """Writer of a broker's checkpoints and acknowledgements into the revive topic.

    The records are stored as timer messages. A record is durable as soon as the log is on the disk
    up to its ``PutResult``.

    - ``topic``: the revive topic, if a former ``brokerClusterName`` is in its name. By default the
      topic of the present cluster.
    - ``counts``: the counters of records, for the metrics.

    Source: apache/rocketmq ``PopMessageProcessor.buildCkMsg``, ``AckMessageProcessor.appendAck``.
    """

    def __init__(
        self,
        config: BrokerConfig,
        forwarding: Forwarding,
        clock: Clock,
        topic: str = "",
        counts: PopCounts | None = None,
    ) -> None:
        self.counts = counts or PopCounts()
        self._config = config
        self._forwarding = forwarding
        self._clock = clock
        self.topic = topic or REVIVE_TOPIC_PREFIX + config.broker_cluster_name
        self.broker_name = config.broker_name
        self._popped = 0

    def next_queue(self) -> int:
        """Return the revive queue for the records of the next pop. Pops use these queues in
        rotation."""
        self._popped += 1
        return (self._popped - 1) % self._config.revive_queue_num

    @property
    def used(self) -> bool:
        """True if an unordered pop has run since the start of the broker."""
        return self._popped > 0

    async def store_checkpoint(self, queue_id: int, checkpoint: Checkpoint) -> PutResult:
        """Store a checkpoint. The timers deliver it shortly before its messages become visible
        again.

        Raises StoreError, OSError, and MessageError if this time is too late for a timer.
        """
        key = checkpoint.key(self.broker_name)
        unique_id = key.unique_id(checkpoint.start_offset, CHECKPOINT_TAG)
        deliver_ms = checkpoint.visible_at_ms - AHEAD_MS
        stored = await self._append(
            queue_id, CHECKPOINT_TAG, unique_id, checkpoint, deliver_ms, for_client=True
        )
        self.counts.add_put(key.group, key.topic, CHECKPOINT)
        return stored

    async def store_acknowledgement(
        self, queue_id: int, key: PopKey, offsets: list[int], visible_at_ms: int
    ) -> PutResult:
        """Store an acknowledgement for messages of one checkpoint.

        Raises the errors of ``store_checkpoint``.
        """
        ack = Acknowledgement.of(key, offsets)
        first = ack.offset if ack.tag == ACK_TAG else f"[{', '.join(map(str, offsets))}]"
        unique_id = key.unique_id(first, ack.tag)
        stored = await self._append(queue_id, ack.tag, unique_id, ack, visible_at_ms)
        self.counts.add_put(key.group, key.topic, ACKNOWLEDGEMENT)
        return stored

    async def _append(
        self,
        queue_id: int,
        tag: str,
        unique_id: str,
        record: Record,
        deliver_ms: int,
        *,
        for_client: bool = False,
    ) -> PutResult:
        text = encode_properties(
            {TAGS: tag, UNIQ_KEY: unique_id, TIMER_DELIVER_MS: str(deliver_ms)}
        )
        destination = by_way_of_timer(
            Destination(self.topic, queue_id, text, 0), self._config, self._clock.now_ms()
        )
        if isinstance(destination, Response):
            raise MessageError(destination.remark or "the timers refused the record")
        return await self._forwarding.append(
            destination.topic,
            destination.queue_id,
            fastjson.encode(record),
            destination.properties,
            for_client=for_client,
        )
