"""Destinations of messages that wait before their delivery.

A message with a delay level goes to the schedule topic. A message with a time (TIMER_DELIVER_MS,
TIMER_DELAY_SEC, TIMER_DELAY_MS) goes to the topic ``rmq_sys_wheel_timer``. Properties of the
message keep the destination to which it was sent. Source: apache/rocketmq
``HookUtils.transformDelayLevelMessage``, ``HookUtils.handleScheduleMessage``,
``SendMessageProcessor.attachRecallHandle``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from turbopump.broker.interceptors import Destination, Interceptor
from turbopump.broker.schedule.timer_messages import slot_ms
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.message import properties as names
from turbopump.message.delivery_time import SCHEDULE_TOPIC, DelayLevels, delay_level
from turbopump.message.handles import RecallHandle
from turbopump.message.java import parse_long
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import SendMessage
from turbopump.remoting.response import Refusal, refusal
from turbopump.store.timers.pending_timers import TIMER_TOPIC

TIME_PROPERTIES: Final = {
    names.TIMER_DELAY_SEC: 1000,
    names.TIMER_DELAY_MS: 1,
    names.TIMER_DELIVER_MS: 1,
}
"""Properties that set a time, with their units in ms. The first property present counts."""


def by_way_of_level(destination: Destination, level: int, levels: DelayLevels) -> Destination:
    """Return the place where a message with a delay level waits: a queue of the schedule topic.

    - ``level``: the delay level, 1 or more. A greater level than the highest counts as the highest.

    A level has priority over a timer, so the properties of a timer are removed.
    """
    level = min(level, levels.highest)
    properties = names.decode_properties(destination.properties)
    for name in TIME_PROPERTIES:
        properties.pop(name, None)
    properties.update(
        {
            names.DELAY_TIME_LEVEL: str(level),
            names.REAL_TOPIC: destination.topic,
            names.REAL_QUEUE_ID: str(destination.queue_id),
        }
    )
    return msgspec.structs.replace(
        destination,
        topic=SCHEDULE_TOPIC,
        queue_id=level - 1,
        properties=names.encode_properties(properties),
        recall_handle=None,
    )


def delay_level_interceptor(levels: DelayLevels) -> Interceptor:
    """Return the interceptor for messages with a DELAY property. It redirects them to their delay
    level.

    A message that another interceptor has redirected is left unchanged.
    """

    def rule(request: SendMessage, destination: Destination) -> Destination | Refusal:
        if destination.topic != request.topic:
            return destination
        try:
            level = delay_level(destination.properties)
        except ValueError as error:
            return refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{error}; set a level from 1 to {levels.highest} (messageDelayLevel of "
                "the broker), or 0 for no delay",
            )
        return by_way_of_level(destination, level, levels) if level > 0 else destination

    return rule


def timer_interceptor(config: BrokerConfig, clock: Clock) -> Interceptor:
    """Return the interceptor for messages with a time. It redirects them to the timers.

    A message that another interceptor has redirected is left unchanged.
    """

    def rule(request: SendMessage, destination: Destination) -> Destination | Refusal:
        if destination.topic != request.topic or "TIMER_D" not in destination.properties:
            return destination
        return by_way_of_timer(destination, config, clock.now_ms())

    return rule


def by_way_of_timer(
    destination: Destination, config: BrokerConfig, now: int
) -> Destination | Refusal:
    """Return the place where a message with a time waits: the queue of the timers.

    A message that need not wait keeps the given destination. A message is refused if its time is
    invalid, or if the broker has no timers.
    """
    half = destination.sys_flag & names.TRANSACTION_MASK not in (
        0,
        names.SysFlag.TRANSACTION_COMMIT,
    )
    if destination.topic == TIMER_TOPIC or half:
        return destination
    properties = names.decode_properties(destination.properties)
    if (parse_long(properties.get(names.DELAY_TIME_LEVEL, "").strip()) or 0) > 0:
        for one in TIME_PROPERTIES:  # RocketMQ: a delay level has priority
            properties.pop(one, None)
        return msgspec.structs.replace(destination, properties=names.encode_properties(properties))
    name = next((one for one in TIME_PROPERTIES if one in properties), None)
    # a message with TIMER_OUT_MS has waited already and is stored again
    if name is None or names.TIMER_OUT_MS in properties:
        return destination
    if not config.timer_wheel_enable:
        remark = "accurate timer message is not enabled, timerWheelEnable is false"
        return refusal(
            ResponseCode.SYSTEM_ERROR,
            f"{remark}: send with a delay level, or set timerWheelEnable=true on the broker",
        )
    number = parse_long(properties[name])
    if number is None:
        return _illegal(config, f"{name}={properties[name][:40]!r} is not a whole number")
    deliver = number
    if name != names.TIMER_DELIVER_MS:
        deliver = now + number * TIME_PROPERTIES[name]
    if deliver <= now:
        if names.TIMER_DELETE_UNIQ_KEY in properties:
            return _illegal(
                config,
                f"it is too late to recall a message that was due at {deliver}; the "
                f"broker's clock says {now}",
            )
        return destination
    if deliver - now > config.timer_max_delay_sec * 1000:
        return _illegal(
            config, f"{name}={properties[name][:40]} is {(deliver - now) // 1000} s ahead"
        )
    out = slot_ms(deliver, config.timer_precision_ms)
    if name != names.TIMER_DELIVER_MS and (
        config.timer_precision_ms < 1000 or names.TIMER_DELIVER_MS in properties
    ):
        # after a change of the precision, the slot alone would not give the exact time
        properties[names.TIMER_DELIVER_MS] = str(deliver)
    properties[names.TIMER_OUT_MS] = str(out)
    properties[names.REAL_TOPIC] = destination.topic
    properties[names.REAL_QUEUE_ID] = str(destination.queue_id)
    handle = None
    if config.recall_message_enable and not destination.topic.startswith(RETRY_PREFIX):
        handle = RecallHandle(
            destination.topic, config.broker_name, str(out + 1), properties.get(names.UNIQ_KEY, "")
        ).encode()
    return Destination(
        TIMER_TOPIC, 0, names.encode_properties(properties), destination.sys_flag, handle
    )


def _illegal(config: BrokerConfig, why: str) -> Refusal:
    most = config.timer_max_delay_sec
    return refusal(
        ResponseCode.MESSAGE_ILLEGAL,
        f"timer message illegal, {why}; the delay time should not be bigger than the max delay "
        f"{most * 1000}ms (timerMaxDelaySec={most} of the broker), times are ms since 1970",
    )
