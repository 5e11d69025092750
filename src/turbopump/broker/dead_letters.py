"""Destinations for messages that a consumer could not process: retry topics and dead-letter topics.

A copy of the message goes to the topic ``%RETRY%group``, after a delay. After too many attempts it
goes to the group's dead-letter topic instead. The property ``RETRY_TOPIC`` keeps the original
topic, and ``ORIGIN_MESSAGE_ID`` the id of the first copy. Source: apache/rocketmq
``AbstractSendMessageProcessor.consumerSendMsgBack``, ``SendMessageProcessor.handleRetryAndDLQ``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from turbopump.broker.counters.dead_letters import DeadLetterCounts
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
    """Return the destination of a message that a consumer sent back. Return None for the
    dead-letter topic.

    The message waits in a delay level before it reaches the retry topic.

    - ``retry``: the destination in the retry topic of the group.
    - ``delay_level``: the level that the consumer asked for. 0 means one level higher than last
      time, and a negative number means the dead-letter topic.
    - ``attempts_max``: the number of retries after which the message becomes a dead letter.
    """
    if delay_level < 0 or message.reconsume_times >= attempts_max:
        return None
    return by_way_of_level(retry, delay_level or FIRST_LEVEL + message.reconsume_times, levels)


def sent_back_properties(
    message: ReceivedMessage, failure: str | None = None, *, dead: bool
) -> str:
    """Return the properties for the copy of a message that a consumer sent back.

    ``failure`` is the reason that the consumer reported. RocketMQ: a dead letter also has the
    property DELAY, with the value 0.
    """
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
    """Return the retry topic of a consumer group. Create the topic if necessary."""
    flag = FLAG_UNIT_SUB if unit_mode else 0
    return topics.find_or_make(RETRY_PREFIX + group, queues, flag)


def dead_letter_topic(topics: TopicTable, group: str) -> TopicConfig:
    """Return the dead-letter topic of a consumer group. Create the topic, with one queue, if
    necessary."""
    return topics.find_or_make(DLQ_PREFIX + group, 1)


def retry_interceptor(tables: Tables, clock: Clock, counts: DeadLetterCounts) -> Interceptor:
    """Return the interceptor that moves hopeless retries to the dead-letter topic.

    A consumer sends a retry as a plain message after request 36, which sends a message back, has
    failed. After too many attempts the interceptor moves the message. It also moves every retry of
    a group that consumes in order, because such a group retries in place and sends only messages
    that it has given up.

    RocketMQ 5.2 and later also moves messages of such a group that were never retried, so that
    nobody can resend to its retry topic.
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
        counts.count(request.producer_group or name, request.topic)
        properties = {**decode_properties(destination.properties), DELAY_TIME_LEVEL: "-1"}
        return msgspec.structs.replace(
            destination, topic=topic, queue_id=0, properties=encode_properties(properties)
        )

    return rule
