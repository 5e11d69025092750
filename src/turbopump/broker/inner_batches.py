"""Batches that are stored as one entry, in topics with ``queue.type=BatchCQ``: what becomes of a
request, and what is refused.

One rule: an entry of such a queue holds as many messages as it says, for consumers number them by
that. Source: apache/rocketmq ``SendMessageProcessor.sendBatchMessage``,
``HookUtils.checkInnerBatch``, ``BatchConsumeQueue.assignQueueOffset``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from turbopump.broker.detours import Parcel, kind_in_batch
from turbopump.errors import ProtocolError
from turbopump.message.batch import walk_batch
from turbopump.message.java_hash import tags_code
from turbopump.message.properties import INNER_BASE, INNER_NUM, property_value, send_properties
from turbopump.message.sysflag import SysFlag
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import SendRequest
from turbopump.remoting.router import Response
from turbopump.store.log.commit_log import NewMessage

COUNT_MAX: Final = 0x7FFF
"""Messages of an inner batch: their number is a signed short on the disk."""
INNER_FLAGS: Final = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)


class InnerBatch(msgspec.Struct, frozen=True):
    """What is stored of one: an entry of ``count`` messages, with these flags."""

    message: NewMessage
    count: int
    sys_flag: int


def refuse_false_inner_batch(request: SendRequest, parcel: Parcel) -> Parcel | Response:
    """A rule of ``Detours``: a message that is no inner batch does not say of how many messages it
    is one."""
    if (
        request.sys_flag & SysFlag.INNER_BATCH
        or property_value(parcel.properties, INNER_NUM) is None
    ):
        return parcel
    return _illegal(
        f"it has the property {INNER_NUM} but is not an inner batch; leave that property out"
    )


def inner_batch(request: SendRequest, body: bytes, added: str, base: int) -> InnerBatch | Response:
    """The entry of a batch whose request has a UNIQ_KEY, or of a message that comes as an inner
    batch, from queue offset ``base`` on."""
    text = request.properties or ""
    if request.batch:
        counted = _count(body)
        count, flags = counted, request.sys_flag | INNER_FLAGS
    else:
        said = property_value(text, INNER_NUM) or "1"
        count = (
            int(said)
            if said.isascii() and said.isdigit() and len(said) <= 5
            else f"{INNER_NUM}={said[:32]} is no number"
        )
        flags = request.sys_flag
        if (
            flags & SysFlag.NEED_UNWRAP
            and not flags & SysFlag.COMPRESSED
            and count != (counted := _count(body))
        ):
            count = (
                counted
                if isinstance(counted, str)
                else (f"{INNER_NUM} is {said[:32]}, but it has {counted} messages")
            )
    if isinstance(count, str):
        return _illegal(count)
    if not 0 < count <= COUNT_MAX:
        return _illegal(f"an inner batch has 1 to {COUNT_MAX} messages, not {count}; send several")
    number = f"{INNER_NUM}\x01{count}\x02{INNER_BASE}\x01{base}\x02".encode()
    _, unique, tags, keys, properties = send_properties(text, added.encode() + number)
    return InnerBatch(
        NewMessage(body, properties, tags_code(tags) if tags else 0, request.flag, unique, keys),
        count,
        flags,
    )


def _count(body: bytes) -> int | str:
    """How many messages a batch has; what is wrong with it, as a sentence."""
    try:
        found = walk_batch(body)
        for _, _, _, at, size in found:
            refused = kind_in_batch(body[at : at + size].decode())
            if refused is not None:
                return refused.remark or ""
    except ProtocolError as error:
        return str(error)
    except UnicodeDecodeError:
        return "the properties of a message of the batch are no UTF-8 text"
    return len(found)


def _illegal(cause: str) -> Response:
    said = "the message is illegal, maybe msg body or properties length not matched"
    return Response(code=ResponseCode.MESSAGE_ILLEGAL, remark=f"{said}: {cause}")
