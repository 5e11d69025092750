"""Messages that are not stored where they were sent to: half messages, timers, delays.

Each rule may change the destination of a message or refuse it. The rules are asked only about
messages whose properties may ask for more than to be stored. Source: apache/rocketmq
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
"""A rule: the destination as it is, another one, or the answer to a message that is refused."""


class Interceptors:
    """The rules of a broker, in the order in which they are asked; each sees what the one before
    has made of the message."""

    def __init__(self) -> None:
        self._rules: list[Interceptor] = []

    def add(self, rule: Interceptor) -> None:
        self._rules.append(rule)

    def find(self, request: SendMessage, destination: Destination) -> Destination | Refusal:
        """Return the destination of a message. A retried message follows the same rules."""
        for rule in self._rules:
            found = rule(request, destination)
            if isinstance(found, Response):
                return found
            destination = found
        return destination


def added_properties(config: BrokerConfig) -> str:
    """Property text that every message gets that is sent to this broker, behind what the rules make
    of it."""
    trace = "true" if config.trace_on else "false"
    return encode_properties(
        {"MSG_REGION": config.region_id, "TRACE_ON": trace, "CLUSTER": config.broker_cluster_name}
    )


_KINDS: Final = re.compile(
    r"(?:^|\x02)(DELAY|TIMER_DELAY_SEC|TIMER_DELAY_MS|TIMER_DELIVER_MS|TRAN_MSG)\x01([^\x02]*)"
)

_TAKEN: Final = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
"""Kinds that a rule takes."""


def refuse_unknown_kinds(request: SendMessage, destination: Destination) -> Destination | Refusal:
    """The last rule: what no rule before has taken and this broker cannot treat is refused, not
    delivered as if it were plain."""
    kind = _kind(destination.properties, _TAKEN) if destination.topic == request.topic else None
    if kind is None:
        return destination
    return refusal(
        ResponseCode.MESSAGE_ILLEGAL,
        f"{kind} are not supported by this broker yet; send a plain message",
    )


def kind_in_batch(properties: str) -> Refusal | None:
    """The answer to a message of a batch that must not be in one; None: it may."""
    kind = _kind(properties)
    if kind is None:
        return None
    return refusal(
        ResponseCode.MESSAGE_ILLEGAL, f"{kind} cannot be part of a batch; send each by itself"
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
    """A rule: only an inner batch may have the property that gives its number of messages."""
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
