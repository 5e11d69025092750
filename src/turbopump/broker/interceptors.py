"""Messages that are not stored at their destination at once: half messages, timers, delays.

Each interceptor may change the destination of a message or refuse it. Interceptors are called only
for messages with special properties. Source: apache/rocketmq ``SendMessageProcessor``
(transactions), then ``HookUtils.handleScheduleMessage`` (timers, levels).
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
    """Destination of a message, and its fields that depend on it. ``properties``: the property text
    as sent, with its UNIQ_KEY.

    ``recall_handle``: for the answer; the producer needs it to recall the message.
    """

    topic: str
    queue_id: int
    properties: str
    sys_flag: int
    recall_handle: str | None = None


Interceptor = Callable[[SendMessage, Destination], Destination | Refusal]
"""Function that returns the destination unchanged, another one, or a refusal."""


class Interceptors:
    """Interceptors of a broker, in the order of their calls. Each gets the destination that the
    previous one returned."""

    def __init__(self, *rules: Interceptor) -> None:
        self._rules = rules

    def find(self, request: SendMessage, destination: Destination) -> Destination | Refusal:
        """Return the destination of a message. A retried message follows the same rules."""
        for rule in self._rules:
            found = rule(request, destination)
            if isinstance(found, Response):
                return found
            destination = found
        return destination


def added_properties(config: BrokerConfig) -> str:
    """Return the properties that this broker adds to every message, after those of the
    interceptors."""
    return encode_properties({**region_fields(config), "CLUSTER": config.broker_cluster_name})


def region_fields(config: BrokerConfig) -> dict[str, str]:
    """Return the properties and answer fields that tell clients if they should trace messages."""
    return {"MSG_REGION": config.region_id, "TRACE_ON": "true" if config.trace_on else "false"}


_KINDS: Final = re.compile(
    r"(?:^|\x02)(DELAY|TIMER_DELAY_SEC|TIMER_DELAY_MS|TIMER_DELIVER_MS|TRAN_MSG)\x01([^\x02]*)"
)

_TAKEN: Final = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
"""Properties that an interceptor handles."""


def refuse_unknown_kinds(request: SendMessage, destination: Destination) -> Destination | Refusal:
    """Refuse a message that no earlier interceptor has handled and this broker does not support.
    The message is not delivered as a plain one."""
    kind = _kind(destination.properties, _TAKEN) if destination.topic == request.topic else None
    if kind is None:
        return destination
    return refusal(
        ResponseCode.MESSAGE_ILLEGAL,
        f"{kind} are not supported by this broker yet; send a plain message",
    )


def kind_in_batch(properties: str) -> Refusal | None:
    """Return a refusal for a message that is not allowed in a batch, or None."""
    kind = _kind(properties)
    if kind is None:
        return None
    return refusal(
        ResponseCode.MESSAGE_ILLEGAL,
        f"{kind} are not allowed in a batch; send each in a request of its own",
    )


def _kind(properties: str, known: tuple[str, ...] = ()) -> str | None:
    for name, value in _KINDS.findall(properties):
        if name in known:
            continue
        if name == "TRAN_MSG" and value.lower() != "true":
            continue
        if name == "DELAY" and value.strip() in ("", "0"):
            continue
        return f"{'transactional' if name == 'TRAN_MSG' else 'delayed'} messages (property {name})"
    return None


def refuse_false_inner_batch(
    request: SendMessage, destination: Destination
) -> Destination | Refusal:
    """Refuse a message with the property for an inner batch's number of messages, unless the
    message is one."""
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
