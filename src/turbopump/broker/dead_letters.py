"""Messages that a consumer could not process: back to its group's retry topic, or, after too many
attempts, to its dead letters.

A copy for ``%RETRY%group`` waits in a delay level first. ``RETRY_TOPIC`` keeps the original topic,
``ORIGIN_MESSAGE_ID`` the id of the first copy. Source: apache/rocketmq
``AbstractSendMessageProcessor.consumerSendMsgBack``, ``SendMessageProcessor.handleRetryAndDLQ``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from turbopump.broker.interceptors import Destination, Interceptor
from turbopump.broker.schedule.destinations import by_way_of_level
from turbopump.broker.tables import Tables
from turbopump.broker.topics import TopicTable
from turbopump.clock import Clock
from turbopump.message.delivery_time import DelayLevels
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import (
    DELAY_TIME_LEVEL,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    WAIT_STORE_MSG_OK,
    decode_properties,
    encode_properties,
    with_failure,
)
from turbopump.message.rules import DLQ_PREFIX, RETRY_PREFIX
from turbopump.protocol.requests.send import SendMessage
from turbopump.protocol.requests.topics import FLAG_UNIT_SUB, TopicConfig

FIRST_LEVEL: Final = 3
"""Delay level of the first retry. Each further retry waits one level longer."""


def sent_back_destination(
    message: ReceivedMessage,
    retry: Destination,
    delay_level: int,
    attempts_max: int,
    levels: DelayLevels,
) -> Destination | None:
    """Return the destination of a returned message: ``retry``, its queue in the retry topic, after
    a delay level (0: one higher than last time). None: the dead letters, because the consumer wants
    that (below 0) or ``attempts_max`` retries were made."""
    if delay_level < 0 or message.reconsume_times >= attempts_max:
        return None
    return by_way_of_level(retry, delay_level or FIRST_LEVEL + message.reconsume_times, levels)


def sent_back_properties(
    message: ReceivedMessage, failure: str | None = None, *, dead: bool
) -> str:
    """Return the properties of the copy, with the ``failure`` that its consumer reported. RocketMQ:
    a dead letter also has DELAY, as 0."""
    properties = with_failure(message.properties, failure, message.reconsume_times + 1)
    properties.setdefault(RETRY_TOPIC, message.topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, message.offset_msg_id)
    properties[WAIT_STORE_MSG_OK] = "false"
    if dead:
        properties[DELAY_TIME_LEVEL] = "0"
    return encode_properties(properties)


def retry_topic(
    topics: TopicTable, group: str, queues: int, *, unit_mode: bool = False
) -> TopicConfig:
    """Return the group's retry topic, created if necessary."""
    flag = FLAG_UNIT_SUB if unit_mode else 0
    return topics.find_or_make(RETRY_PREFIX + group, queues, flag)


def dead_letter_topic(topics: TopicTable, group: str) -> TopicConfig:
    """Return the group's dead-letter topic, created with one queue if necessary."""
    return topics.find_or_make(DLQ_PREFIX + group, 1)


def retry_interceptor(tables: Tables, clock: Clock) -> Interceptor:
    """Make the rule for consumers that send a retry themselves, after 36 failed. One attempt too
    many goes to the dead letters. So does every retry of a group that consumes in order, because it
    retries in place and sends only messages that it has given up.

    RocketMQ, from 5.2 on, also does the latter to messages that were never tried, so that nobody
    can resend to the retry topic of such a group.
    """

    def rule(request: SendMessage, destination: Destination) -> Destination:
        if (
            destination.topic != request.topic
            or not request.topic.startswith(RETRY_PREFIX)
            or not request.reconsume_times
        ):
            return destination
        name = request.topic[len(RETRY_PREFIX) :]
        group = tables.groups.find_or_create(name)
        attempts_max = request.max_reconsume_times
        if attempts_max is None:
            attempts_max = group.retry_max_times if group is not None else 0
        in_order = tables.locks.locks.any_held(name, clock.monotonic())
        if request.reconsume_times <= attempts_max and not in_order:
            return destination
        topic = dead_letter_topic(tables.topics, name).topic_name
        assert topic is not None
        properties = {**decode_properties(destination.properties), DELAY_TIME_LEVEL: "-1"}
        return msgspec.structs.replace(
            destination, topic=topic, queue_id=0, properties=encode_properties(properties)
        )

    return rule
