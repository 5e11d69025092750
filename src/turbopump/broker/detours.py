"""Messages that are not stored where they were sent to: half messages, timers, delays. A table of
rules, asked only for those whose properties may ask for more than to be stored; a plain message
never comes here.

Source: apache/rocketmq ``SendMessageProcessor`` (transactions), then
``HookUtils.handleScheduleMessage`` (timers, levels).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from turbopump.config.broker_config import BrokerConfig
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import SendRequest
from turbopump.remoting.router import Response


class Parcel(msgspec.Struct, frozen=True):
    """Where a message is to be stored, and what of it depends on that. ``properties`` is property
    text as it was sent, with its UNIQ_KEY.

    ``recall_handle``: what the producer needs to call the message back; it goes into the answer.
    """

    topic: str
    queue_id: int
    properties: str
    sys_flag: int
    recall_handle: str | None = None


Detour = Callable[[SendRequest, Parcel], Parcel | Response]
"""A rule: the parcel as it is or another one; or the answer to a message that cannot be taken."""


class Detours:
    """The rules of a broker, in the order in which they are asked; each sees what the one before
    has made of the message."""

    def __init__(self) -> None:
        self._rules: list[Detour] = []

    def add(self, rule: Detour) -> None:
        self._rules.append(rule)

    def find(self, request: SendRequest, parcel: Parcel) -> Parcel | Response:
        """Where the message goes. A message of a retried delivery passes by the same rules."""
        for rule in self._rules:
            found = rule(request, parcel)
            if isinstance(found, Response):
                return found
            parcel = found
        return parcel


def added_properties(config: BrokerConfig) -> str:
    """Property text that every message gets that is sent to this broker, behind what the rules make
    of it."""
    trace = "true" if config.trace_on else "false"
    return f"MSG_REGION\x01{config.region_id}\x02TRACE_ON\x01{trace}\x02CLUSTER\x01{config.broker_cluster_name}\x02"


_KINDS: Final = re.compile(
    r"(?:^|\x02)(DELAY|TIMER_DELAY_SEC|TIMER_DELAY_MS|TIMER_DELIVER_MS|TRAN_MSG)\x01([^\x02]*)"
)

_TAKEN: Final = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
"""Kinds that a rule takes."""


def refuse_unknown_kinds(request: SendRequest, parcel: Parcel) -> Parcel | Response:
    """The last rule: what no rule before has taken and this broker cannot treat is refused, not
    delivered as if it were plain."""
    kind = _kind(parcel.properties, _TAKEN) if parcel.topic == request.topic else None
    if kind is None:
        return parcel
    return Response(
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=f"{kind} are not supported by this broker yet; send a plain message",
    )


def kind_in_batch(properties: str) -> Response | None:
    """The answer to a message of a batch that must not be in one; None: it may."""
    kind = _kind(properties)
    if kind is None:
        return None
    return Response(
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark=f"{kind} cannot be part of a batch; send each by itself",
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
