"""Copies of stored messages for another cluster, and the mark that each copy carries.

::

    MIRRORED_FROM = cluster "/" broker "/" queue "/" offset "/" back ["/" others] {SP cluster}

- ``offset``: of the message in the queue that it was copied from. The copy's own offset and this
  one are the mapping of offsets. No table is needed beside the messages.
- ``back``: distance from ``offset`` to that of the first message of the batch. When a batch is
  sent, everything before it is stored in the target. So each copy proves that of all messages
  before ``offset`` - ``back``.
- ``others``: first offset in the target queue, after a copy, of a message that is not one of this
  queue's copies. Absent if the mirror has seen none.
- ``cluster`` after a space: clusters that the message was mirrored from before, newest first. A
  message is never copied to a cluster that it comes from.

One rule: a copy has everything that the sender gave to the message, and nothing that the source
broker added for its own delivery. The header of a batch has one born time for all its messages, and
a broker takes the born host from the connection. Both are kept as the properties ``BORN_TIMESTAMP``
and ``__BORNHOST``, as Apache's proxy does. This module must not know how messages are read or sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from turbopump.config.addresses import join_address
from turbopump.message import properties as names
from turbopump.message.batch import encode_item
from turbopump.message.entry import (
    BORN_HOST_AT,
    BORN_TIMESTAMP_AT,
    FLAG_AT,
    FLAG_BITS_AT,
    STORE_HOST_AT,
    V6_EXTRA,
    body_span,
    physical_offset_of,
    properties_span,
    queue_offset_of,
    sys_flag_of,
)
from turbopump.message.ids import decode_host, offset_msg_id
from turbopump.message.properties import SysFlag, whole_number
from turbopump.message.user_properties import LEFT_BEHIND

MIRRORED_FROM: Final = "MIRRORED_FROM"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
BORN_HOST: Final = "__BORNHOST"

_SENDERS: Final = {
    names.WAIT_STORE_MSG_OK,
    names.TRANSACTION_ID,
    names.MESSAGE_TYPE,
    "INSTANCE_ID",
    BORN_TIMESTAMP,
    BORN_HOST,
}
"""Properties of ``LEFT_BEHIND`` that say something about the message itself."""
_BROKERS: Final = frozenset(name.encode() for name in LEFT_BEHIND - _SENDERS)
"""Properties that the source broker added, or that would make the target broker delay the message
or hide it as half of a transaction."""
_KEPT_FLAGS: Final = SysFlag.COMPRESSED | SysFlag.MULTI_TAGS | names.COMPRESSION_MASK
_MARK: Final = MIRRORED_FROM.encode()
_MARK_HEAD: Final = _MARK + b"\x01"
_BORN_TIME: Final = BORN_TIMESTAMP.encode()
_BORN_HOST: Final = BORN_HOST.encode()
_ID: Final = names.UNIQ_KEY.encode()


class Origin(NamedTuple):
    """Decoded mark of a copy: the message that it was copied from.

    - ``others``: first offset of other messages in the target queue, or None.
    - ``before``: clusters that the message was mirrored from before, newest first.
    """

    cluster: str
    broker: str
    queue_id: int
    offset: int
    back: int
    others: int | None = None
    before: tuple[str, ...] = ()


def decode_mark(text: str) -> Origin | None:
    """Parse the value of ``MIRRORED_FROM``. Return None if the text is not such a value."""
    head, *before = text.split(" ")
    parts = head.split("/")
    numbers = [number for part in parts[2:] if (number := whole_number(part)) is not None]
    if len(numbers) != len(parts) - 2 or len(numbers) not in (3, 4):
        return None
    queue_id, offset, back, *others = numbers
    return Origin(
        parts[0], parts[1], queue_id, offset, back, others[0] if others else None, tuple(before)
    )


def origin_of(entry: bytes) -> Origin | None:
    """Return the decoded mark of a stored message, or None if it has none."""
    begin, end = properties_span(entry)
    at = entry.rfind(_MARK_HEAD, begin, end)
    if at < 0 or (at > begin and entry[at - 1] != 2):  # inside another name or a value
        return None
    at += len(_MARK_HEAD)
    until = entry.find(b"\x02", at, end)
    return decode_mark(str(entry[at : end if until < 0 else until], "utf-8", "replace"))


class MirroredMessage(NamedTuple):
    """Copy of a stored message, without its mark.

    - ``offset``: queue offset of the original.
    - ``sys_flag``: the kind of compression.
    - ``properties``: property text, with a separator at its end.
    - ``before``: clusters that the message was mirrored from, newest first.
    - ``dated``: True if the properties have a born time.
    """

    offset: int
    born_timestamp: int
    sys_flag: int
    flag: int
    body: bytes
    properties: bytes
    before: tuple[str, ...]
    dated: bool


def copied(entry: bytes) -> MirroredMessage:
    """Return the copy of a good stored message (``codec.entry_fault``).

    Bytes that are not UTF-8 stay as they are. Takes about 6 µs.
    """
    kept: list[bytes] = []
    before: tuple[str, ...] = ()
    seen = set()
    begin, end = properties_span(entry)
    for pair in entry[begin:end].split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if not value or name in _BROKERS:
            continue
        if name == _MARK:
            origin = decode_mark(str(value, "utf-8", "replace"))
            before = () if origin is None else (origin.cluster, *origin.before)
            continue
        seen.add(name)
        kept.append(pair)
    if _BORN_HOST not in seen:
        kept.append(b"%b\x01%b" % (_BORN_HOST, join_address(*_born_host(entry)).encode()))
    if _ID not in seen:  # old clients send none; the id is then that of the position
        kept.append(b"%b\x01%b" % (_ID, _position_id(entry).encode()))
    body_begin, body_end = body_span(entry)
    return MirroredMessage(
        queue_offset_of(entry),
        int.from_bytes(entry[BORN_TIMESTAMP_AT : BORN_TIMESTAMP_AT + 8], signed=True),
        sys_flag_of(entry) & _KEPT_FLAGS,
        int.from_bytes(entry[FLAG_AT : FLAG_AT + 4], signed=True),
        entry[body_begin:body_end],
        b"\x02".join(kept) + b"\x02",
        before,
        _BORN_TIME in seen,
    )


def _born_host(entry: bytes) -> tuple[str, int]:
    size = 20 if entry[FLAG_BITS_AT] & SysFlag.BORN_HOST_V6 else 8
    return decode_host(entry[BORN_HOST_AT : BORN_HOST_AT + size])


def _position_id(entry: bytes) -> str:
    flags = entry[FLAG_BITS_AT]
    at = STORE_HOST_AT + (V6_EXTRA if flags & SysFlag.BORN_HOST_V6 else 0)
    size = 20 if flags & SysFlag.STORE_HOST_V6 else 8
    return offset_msg_id(*decode_host(entry[at : at + size]), physical_offset_of(entry))


class MarkWriter:
    """Encoder of copies with the mark of one source queue."""

    def __init__(self, cluster: str, broker: str, queue_id: int) -> None:
        self._head = f"{MIRRORED_FROM}\x01{cluster}/{broker}/{queue_id}/"

    def properties(
        self, message: MirroredMessage, first: MirroredMessage, others: int | None
    ) -> bytes:
        """Return the property text of a copy, with its mark.

        - ``first``: first message of the batch. If its born time, which is in the header of the
          request, is not that of the message, the latter is added as a property.
        - ``others``: first offset of other messages in the target queue, or None.
        """
        mark = f"{self._head}{message.offset}/{message.offset - first.offset}"
        if others is not None:
            mark += f"/{others}"
        if message.before:
            mark = " ".join((mark, *message.before))
        if message.born_timestamp != first.born_timestamp and not message.dated:
            mark = f"{BORN_TIMESTAMP}\x01{message.born_timestamp}\x02{mark}"
        return b"%b%b\x02" % (message.properties, mark.encode())

    def batch(self, messages: Sequence[MirroredMessage], others: int | None) -> bytes:
        """Return the body of a batch."""
        return b"".join(
            [
                encode_item(one.flag, one.body, self.properties(one, messages[0], others))
                for one in messages
            ]
        )
