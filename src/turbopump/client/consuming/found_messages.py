"""What brokers found, put together: checked, compared with what was asked, and in order. It must
not know how they were asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from turbopump.errors import ProtocolError, RemotingError, StoredMessageError
from turbopump.message.checked import DamagedEntry, good_entries
from turbopump.message.codec import decode_entry
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import KEY_SEPARATOR, KEYS, UNIQ_KEY
from turbopump.protocol.requests.queries import QueryMessage

log = logging.getLogger(__name__)

Time = int | datetime
"""ms since 1970 UTC, or a datetime."""


class FoundMessages(msgspec.Struct, frozen=True):
    """``messages``, oldest first. ``missing``: brokers (or queues) that could not be asked, and
    why: there may be more messages there. ``remarks``: what brokers that found nothing by a key say
    about it: that it is damaged, that they keep no index."""

    messages: Sequence[ReceivedMessage]
    missing: Mapping[str, str]
    remarks: Mapping[str, str] = {}


async def each_answer(asked: Mapping[str, Awaitable[list[ReceivedMessage]]]) -> FoundMessages:
    """All that is found, and by name who could not be asked."""
    outcomes = await asyncio.gather(*asked.values(), return_exceptions=True)
    messages: list[ReceivedMessage] = []
    missing: dict[str, str] = {}
    for name, outcome in zip(asked, outcomes, strict=True):
        if isinstance(outcome, list):
            messages.extend(outcome)
        elif isinstance(outcome, RemotingError | ProtocolError):
            missing[name] = str(outcome)
        else:
            raise outcome
    return FoundMessages(messages, missing)


def good_messages(body: bytes, broker_name: str, address: str) -> list[ReceivedMessage]:
    """The messages in a broker's answer; those that are damaged are logged and left out."""
    messages = []

    def on_damage(entry: DamagedEntry) -> None:
        log.error(
            "damaged message not handed over broker=%s address=%s cause=%s",
            broker_name,
            address,
            entry.fault,
        )

    for entry in good_entries(body, on_damage):
        try:
            message = decode_entry(entry, check_crc=False)
        except StoredMessageError as error:
            log.error(
                "damaged message not handed over broker=%s address=%s cause=%s",
                broker_name,
                address,
                error,
            )
            continue
        message.broker_name = broker_name
        messages.append(message)
    return messages


def is_meant(message: ReceivedMessage, request: QueryMessage, begin_ms: int) -> bool:
    """Whether a message is what the request, at ``begin_ms`` or later, asked for."""
    if (
        message.topic != request.topic
        or not begin_ms <= message.store_timestamp <= request.end_timestamp
    ):
        return False
    if request.unique_key:
        return message.properties.get(UNIQ_KEY) == request.key
    return request.key in message.properties.get(KEYS, "").split(KEY_SEPARATOR)


def in_order(messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
    """By store time, oldest first."""
    return sorted(
        messages,
        key=lambda message: (
            message.store_timestamp,
            message.broker_name,
            message.commit_log_offset,
        ),
    )


def as_ms(time: Time | None, default: int) -> int:
    """A time in ms since 1970."""
    if time is None:
        return default
    return int(time.timestamp() * 1000) if isinstance(time, datetime) else time
