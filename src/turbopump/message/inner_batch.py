"""Entries that hold a whole batch, taken apart: each message as an entry of its own, as it would
lie in a topic without such batches.

What a message has not itself (hosts, times, place in the log) is the batch's; its queue offset is
the batch's and its number in it. The flags stay, so that whoever gets it knows that the log has no
entry of it. Source: apache/rocketmq ``MessageDecoder.decodeMessage``,
``PullAPIWrapper.processPullResult``.
"""

from __future__ import annotations

from typing import Final

from turbopump.errors import MessageError, ProtocolError, StoredMessageError
from turbopump.message.batch import decode_batch
from turbopump.message.codec import decode_entry, encode_entry, encode_host
from turbopump.message.message import ReceivedMessage
from turbopump.message.sysflag import COMPRESSION_MASK, SysFlag

_COMPRESSION: Final = int(SysFlag.COMPRESSED | COMPRESSION_MASK)
_WRAPPED: Final = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)


def is_wrapped(sys_flag: int) -> bool:
    """Whether an entry with these flags holds a batch that consumers take apart."""
    return sys_flag & _WRAPPED == _WRAPPED


def unwrapped(entry: bytes) -> list[bytes]:
    """A good entry itself, or one for each message of the batch in it. Raises StoredMessageError if
    that cannot be read. About 8 µs a message."""
    return _entries_in(decode_entry(entry, check_crc=False)) if is_wrapped(entry[39]) else [entry]


def plain_messages(message: ReceivedMessage) -> list[ReceivedMessage]:
    """A message itself, or each of the batch that it is, with nothing left that says so. Raises
    StoredMessageError."""
    if not is_wrapped(message.sys_flag):
        return [message]
    found = [decode_entry(entry, check_crc=False) for entry in _entries_in(message)]
    for one in found:
        one.sys_flag &= ~_WRAPPED
    return found


def _entries_in(whole: ReceivedMessage) -> list[bytes]:
    try:
        items = decode_batch(whole.body)
        return [
            encode_entry(
                whole.queue_id,
                item.flag,
                whole.queue_offset + number,
                whole.commit_log_offset,
                whole.sys_flag & ~_COMPRESSION,
                whole.born_timestamp,
                encode_host(*whole.born_host),
                whole.store_timestamp,
                encode_host(*whole.store_host),
                whole.reconsume_times,
                whole.prepared_transaction_offset,
                item.body,
                whole.topic.encode(),
                item.properties,
            )
            for number, item in enumerate(items)
        ]
    except (ProtocolError, MessageError) as error:
        place = f"queue offset {whole.queue_offset} of {whole.topic} queue {whole.queue_id}"
        raise StoredMessageError(
            f"the inner batch at {place} cannot be taken apart: {error}"
        ) from None
