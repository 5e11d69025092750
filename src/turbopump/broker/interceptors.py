"""Interceptors of sends. An interceptor may redirect or refuse a special message before the store
gets it.

Half messages, timer messages and delayed messages are not stored in their topic at once. Each
interceptor may change the destination of a message or refuse the message. Source: apache/rocketmq
``SendMessageProcessor`` (transactions), then ``HookUtils.handleScheduleMessage`` (timers, levels).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from turbopump.config.broker_config import BrokerConfig
from turbopump.message.properties import INNER_NUM, SysFlag, encode_properties, property_value
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import SendMessage
from turbopump.remoting.response import Refusal, Response, refusal


class Destination(msgspec.Struct, frozen=True):
    """Queue for a message, together with the properties and flags to store there.

    - ``properties``: the encoded properties as sent, with the property UNIQ_KEY.
    - ``recall_handle``: the handle with which the producer can recall a timer message, or
      None. It is part of the answer.
    """

    topic: str
    queue_id: int
    properties: str
    sys_flag: int
    recall_handle: str | None = None


Interceptor = Callable[[SendMessage, Destination], Destination | Refusal]
"""Function that returns the given destination, another destination, or a refusal."""


class Interceptors:
    """Chain of interceptors. Each one may redirect or refuse a message before the message is
    stored.

    Each interceptor gets the destination that the previous one returned.
    """

    def __init__(self, *rules: Interceptor) -> None:
        self._rules = rules

    def find(self, request: SendMessage, destination: Destination) -> Destination | Refusal:
        """Return the final destination of a message, or the refusal of an interceptor.

        A retried message follows the same rules as a new one.
        """
        for rule in self._rules:
            found = rule(request, destination)
            if isinstance(found, Response):
                return found
            destination = found
        return destination


def added_properties(config: BrokerConfig) -> str:
    """Return the encoded properties that this broker adds to every message.

    They follow the properties that the interceptors set.
    """
    return encode_properties({**region_fields(config), "CLUSTER": config.broker_cluster_name})


def region_fields(config: BrokerConfig) -> dict[str, str]:
    """Return the fields that name the broker's region and turn message tracing on or off.

    They are properties of messages and fields of answers.
    """
    return {"MSG_REGION": config.region_id, "TRACE_ON": "true" if config.trace_on else "false"}


_KINDS: Final = re.compile(
    r"(?:^|\x02)(DELAY|TIMER_DELAY_SEC|TIMER_DELAY_MS|TIMER_DELIVER_MS|TRAN_MSG)\x01([^\x02]*)"
)


def kind_in_batch(properties: str) -> Refusal | None:
    """Return a refusal if a batch must not contain messages with these properties. Otherwise return
    None."""
    kind = _kind(properties)
    if kind is None:
        return None
    return refusal(
        ResponseCode.MESSAGE_ILLEGAL,
        f"{kind} are not allowed in a batch; send each in a request of its own",
    )


def _kind(properties: str) -> str | None:
    for name, value in _KINDS.findall(properties):
        if name == "TRAN_MSG" and value.lower() != "true":
            continue
        if name == "DELAY" and value.strip() in ("", "0"):
            continue
        return f"{'transactional' if name == 'TRAN_MSG' else 'delayed'} messages (property {name})"
    return None


def refuse_false_inner_batch(
    request: SendMessage, destination: Destination
) -> Destination | Refusal:
    """Refuse a message that has the property INNER_NUM but is not an inner batch."""
    if (
        request.sys_flag & SysFlag.INNER_BATCH
        or property_value(destination.properties, INNER_NUM) is None
    ):
        return destination
    return _illegal(
        f"it has the property {INNER_NUM} but is not an inner batch; leave that property out"
    )


def _illegal(cause: str) -> Refusal:
    said = "the message is illegal, maybe msg body or properties length not matched"
    return refusal(ResponseCode.MESSAGE_ILLEGAL, f"{said}: {cause}")
