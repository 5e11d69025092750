"""Forwarding of an acting slave. Due messages go to another master, because a slave stores no
messages of its own.

The records of POP are an exception. The timers deliver them to a revive queue, and an acting slave
keeps them in memory until they are settled (``pop/reviving.py``). Source: apache/rocketmq
``EscapeBridge``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from turbopump.broker.acting.other_masters import OtherMasters
from turbopump.broker.flush_wait import FlushWait
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.pop.records import REVIVE_TOPIC_PREFIX
from turbopump.broker.transactions.half_messages import HalfMessage
from turbopump.clock import Clock
from turbopump.errors import StoreError
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import (
    CRC32,
    DELAY_TIME_LEVEL,
    POP_CK,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_PREPARED_QUEUE_OFFSET,
    SysFlag,
    decode_properties,
    encode_properties,
    whole_number,
)
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.store.log.commit_log import PutResult
from turbopump.store.message_store import MessageStore
from turbopump.store.timers.pending_timers import TIMER_TOPIC

ELSEWHERE: Final = PutResult(0, 0, 0)
"""Position of a message that another broker has stored. No flush of this broker is waited for."""
COARSEST_MS: Final = 1000
"""Greatest possible length of a timer slot, in ms."""
_NOT_HOSTS: Final = ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
_INERT: Final = (CRC32, DELAY_TIME_LEVEL, POP_CK, TRANSACTION_PREPARED)
"""Properties of a stored message that must not have their effect again in a send."""
_OF_HALVES: Final = (
    CRC32,
    REAL_TOPIC,
    REAL_QUEUE_ID,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_PREPARED_QUEUE_OFFSET,
)


class EscapingForwarding(Forwarding):
    """Forwarding of a slave that may act as the master. Messages go to other masters.

    Every failure is a StoreError, and nothing is skipped: the caller tries again, until another
    master stores the message or the master of this slave is back.

    - ``masters``: the other masters of the cluster.
    - ``on_record``: a function that takes a record of POP, with the topic and the queue id to which
      the timers deliver it.
    - ``escaped``: the number of messages that other masters have stored.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        store_host: tuple[str, int],
        flush: FlushWait,
        masters: OtherMasters,
    ) -> None:
        super().__init__(store, clock, store_host, flush, _is_elsewhere)
        self.masters = masters
        self.on_record: Callable[[str, int, ReceivedMessage], None] = _take_nothing
        self.escaped = 0

    async def forward(
        self,
        message: ReceivedMessage,
        topic: str,
        queue_id: int,
        *,
        properties: str | None = None,
        sys_flag: int | None = None,
        reconsume_times: int | None = None,
        prepared_transaction_offset: int = 0,
        for_client: bool = False,
        is_sent: bool = False,
    ) -> PutResult:
        """Send a copy of a stored message to another master.

        The other master chooses the queue. Raises StoreError.
        """
        text = message.properties_text if properties is None else properties
        if topic.startswith(REVIVE_TOPIC_PREFIX):
            self.on_record(topic, queue_id, message)
            return ELSEWHERE
        if topic == TIMER_TOPIC:
            topic, text = _as_new_timer(text)
            if topic.startswith(REVIVE_TOPIC_PREFIX):
                raise StoreError(f"a record of POP in {topic} waits for the master")
        await self._send(
            message,
            _plain_retry_topic(topic),
            _without(text, _INERT),
            message.sys_flag & ~TRANSACTION_MASK,
            message.reconsume_times if reconsume_times is None else reconsume_times,
        )
        return ELSEWHERE

    async def forward_half(self, half: HalfMessage) -> None:
        """Send a half message to another master, which then asks its producers for the outcome.

        Raises StoreError.
        """
        message = half.message
        text = _without(message.properties_text, _OF_HALVES)
        flag = message.sys_flag & ~TRANSACTION_MASK | SysFlag.TRANSACTION_PREPARED
        await self._send(message, half.topic, text, flag, 0)

    async def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: str,
        *,
        sys_flag: int = 0,
        for_client: bool = False,
    ) -> PutResult:
        """Refuse a new message of the broker itself.

        Raises StoreError.
        """
        raise StoreError(f"a slave stores nothing in {topic}: its master is away")

    async def confirmed(self, stored: PutResult) -> None:
        """Return at once. The other master has confirmed the message already."""

    async def _send(
        self, message: ReceivedMessage, topic: str, text: str, sys_flag: int, reconsume_times: int
    ) -> None:
        request = SendMessageV2(
            producer_group=message.properties.get(PRODUCER_GROUP) or "CLIENT_INNER_PRODUCER",
            topic=topic,
            queue_id=0,
            sys_flag=sys_flag & _NOT_HOSTS,
            born_timestamp=message.born_timestamp,
            flag=message.flag,
            properties=text.encode(errors="surrogateescape").decode(errors="replace"),
            reconsume_times=reconsume_times,
            unit_mode=False,
            batch=False,
        )
        await self.masters.send(request, message.stored_body)
        self.escaped += 1


def _is_elsewhere(_topic: str, _queue_id: int, _stored_ms: int) -> None:
    """Do nothing for a message that another master has stored."""


def _take_nothing(topic: str, queue_id: int, _record: ReceivedMessage) -> None:
    raise StoreError(f"no records of POP are taken for queue {queue_id} of {topic}")


def _without(text: str, names: tuple[str, ...]) -> str:
    properties = decode_properties(text)
    for name in names:
        properties.pop(name, None)
    return encode_properties(properties)


def _plain_retry_topic(topic: str) -> str:
    """Return the retry topic of POP with ``_`` between its group and its topic.

    No broker accepts a send to a topic with ``+`` (``enableRetryTopicV2``).
    """
    if topic.startswith(RETRY_PREFIX):
        return topic.replace("+", "_")
    return topic


def _as_new_timer(text: str) -> tuple[str, str]:
    """Return the topic and the properties with which a timer message that is not due is sent again.

    The timers of the other master then have it. Its time is exact if the message has one, and else
    the end of its slot.
    """
    properties = decode_properties(text)
    out = whole_number(properties.pop(TIMER_OUT_MS, ""), 18) or 0
    topic = properties.pop(REAL_TOPIC, "")
    properties.pop(REAL_QUEUE_ID, None)
    properties.setdefault(TIMER_DELIVER_MS, str(out + COARSEST_MS))
    for name in (TIMER_DELAY_MS, TIMER_DELAY_SEC):
        properties.pop(name, None)
    return topic, encode_properties(properties)
