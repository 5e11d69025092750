"""From a pull's answer to messages. One rule: a damaged message is never handed over, and is told
of where it was.

The check is ``turbopump.message.checked``: bodyCRC, and the CRC over the whole entry where the
broker stored one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from turbopump.errors import StoredMessageError
from turbopump.message.checked import DamagedEntry, good_entries
from turbopump.message.codec import decode_entry
from turbopump.message.inner_batch import unwrapped
from turbopump.message.message import ReceivedMessage
from turbopump.message.message_queue import MessageQueue
from turbopump.message.unread import unread_messages

log = logging.getLogger(__name__)

MessageT = TypeVar("MessageT", bound=ReceivedMessage)


class DamagedMessage(msgspec.Struct, frozen=True):
    """A message that came damaged: its queue, its offset there (the first it can have, if its own
    is damaged) and what is wrong."""

    queue: MessageQueue
    queue_offset: int
    fault: str


def pulled_messages(
    body: bytes, queue: MessageQueue, offset: int, next_offset: int, message_type: type[MessageT]
) -> tuple[list[MessageT], list[DamagedMessage]]:
    """The good messages in the answer to a pull of ``queue`` from ``offset`` on, which goes on at
    ``next_offset``; and the damaged ones. Inner batches are taken apart, and what of them lies
    before ``offset`` is left out."""
    messages, at = unread_messages(body, message_type)
    damaged: list[DamagedMessage] = []
    if at == len(body):
        return messages, damaged

    def tell(said: int, fault: str) -> None:
        expected = messages[-1].queue_offset + 1 if messages else offset
        place = said if expected <= said < next_offset else expected
        damaged.append(DamagedMessage(queue, place, fault))

    def on_damage(entry: DamagedEntry) -> None:
        tell(entry.queue_offset, entry.fault)

    for entry in good_entries(body[at:], on_damage):
        try:
            for one in unwrapped(entry):
                message = decode_entry(one, check_crc=False, message_type=message_type)
                assert isinstance(message, message_type)
                if one is entry or message.queue_offset >= offset:
                    messages.append(message)
        except StoredMessageError as error:
            tell(int.from_bytes(entry[20:28], signed=True), str(error))
    return messages, damaged


def tell_of(damaged: Sequence[DamagedMessage]) -> None:
    """One line for each message that is left out."""
    for one in damaged:
        log.error(
            "damaged message not handed over topic=%s broker=%s queue=%d offset=%d cause=%s",
            *(
                one.queue.topic,
                one.queue.broker_name,
                one.queue.queue_id,
                one.queue_offset,
                one.fault,
            ),
        )
