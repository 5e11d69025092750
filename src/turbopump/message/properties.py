"""Message properties: names, and the text they travel and rest in.

::

    name 0x01 value 0x02 name 0x01 value 0x02 …        UTF-8; the last 0x02 may be absent

A name given twice: the last one counts. Clients in C++ and PHP may write other bytes, such as GBK:
a broker stores and copies them unchanged (``property_bytes``); readers see U+FFFD for them, as
Java's do. Source: apache/rocketmq ``MessageConst``, ``MessageDecoder.messageProperties2String``.
"""

from __future__ import annotations

from collections.abc import Mapping
from traceback import format_exception_only
from typing import Final

from turbopump.compiled import has_twin
from turbopump.errors import MessageError

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT_STORE_MSG_OK: Final = "WAIT"
DELAY_TIME_LEVEL: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
PRODUCER_GROUP: Final = "PGROUP"
TRANSACTION_PREPARED: Final = "TRAN_MSG"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
MSG_REGION: Final = "MSG_REGION"
TRACE_SWITCH: Final = "TRACE_ON"
UNIQ_KEY: Final = "UNIQ_KEY"
CLUSTER: Final = "CLUSTER"
POP_CK: Final = "POP_CK"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
SHARDING_KEY: Final = "__SHARDINGKEY"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
MESSAGE_TYPE: Final = "MSG_TYPE"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
REPLY_ARRIVE_TIME: Final = "ARRIVE_TIME"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DELETE_UNIQ_KEY: Final = "TIMER_DEL_UNIQKEY"
CRC32: Final = "__CRC32#"

KEY_SEPARATOR: Final = " "
NAME_END: Final = "\x01"
PAIR_END: Final = "\x02"
PROPERTIES_SIZE_MAX: Final = 32767
"""Bytes: the length is a signed short in the stored entry."""


def encode_properties(properties: Mapping[str, str]) -> str:
    """The text form. Raises MessageError for a name or value that would be read as another. (A
    value with U+0001 would not: clients in C++ nest property texts, and Java 5 reads them so.)"""
    parts = []
    for name, value in properties.items():
        if NAME_END in name or PAIR_END in name or PAIR_END in value:
            raise separator_inside(name)
        parts.append(f"{name}\x01{value}\x02")
    return "".join(parts)


def separator_inside(name: str) -> MessageError:
    """The error of a property that would be taken apart."""
    return MessageError(
        f"property {name!r} holds the character U+0001 or U+0002, which separate properties; "
        "remove it"
    )


def decode_properties(text: str) -> dict[str, str]:
    """The pairs of a property text; a piece without a separator, a name or a value is passed over,
    as Apache's reader does."""
    properties: dict[str, str] = {}
    for pair in text.split(PAIR_END):
        name, _, value = pair.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties


def property_bytes(text: str) -> bytes:
    """Encode a property text for the store. Bytes that were not UTF-8 are surrogates in the text
    (``surrogateescape``) and become the original bytes; other lone surrogates become ``?``, as in
    Java."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        pass
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def readable_text(text: str) -> str:
    """The same text as every reader of the stored bytes has it: with U+FFFD for bytes that are no
    UTF-8. The codes of tags and keys are made of it."""
    return text if text.isascii() else property_bytes(text).decode("utf-8", "replace")


def whole_number(text: str | None, digits: int = 19) -> int | None:
    """Parse a text of ASCII digits, at most ``digits`` of them, as a number; None for another
    text."""
    if text is None or len(text) > digits or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def property_value(text: str, name: str) -> str | None:
    """One property out of a property text, without decoding the others. About 0.3 µs."""
    return value_after(text, name + NAME_END)


@has_twin
def value_after(text: str, needle: str) -> str | None:
    """``property_value`` for the hot path: ``needle`` is the name with its separator, put together
    once."""
    at = text.rfind(needle)
    while at > 0 and text[at - 1] != PAIR_END:  # inside another name or a value
        at = text.rfind(needle, 0, at)
    if at < 0:
        return None
    at += len(needle)
    end = text.find(PAIR_END, at)
    value = text[at:] if end < 0 else text[at:end]
    # an empty value counts as none: an earlier one may stand
    return value or decode_properties(text).get(needle[:-1])


_UNIQ_KEY: Final = UNIQ_KEY + NAME_END
_TAGS: Final = TAGS + NAME_END
_KEYS: Final = KEYS + NAME_END


@has_twin
def send_properties(
    text: str, added: bytes
) -> tuple[bool, str | None, str | None, str | None, bytes]:
    """Return the facts that a send needs from its property text: False if it certainly asks only to
    be stored, then UNIQ_KEY, TAGS, KEYS, and the text to store: terminated, with ``added`` behind.
    About 1.2 µs, compiled 0.3."""
    special = (
        "DELAY" in text
        or "TIMER_D" in text
        or "TRAN_MSG" in text
        or "POP_CK" in text
        or "INNER_NUM" in text
    )
    stored = property_bytes(text + PAIR_END if text and text[-1] != PAIR_END else text)
    text = readable_text(text)
    keys = value_after(text, _KEYS) if _KEYS in text else None
    unique_id, tags = value_after(text, _UNIQ_KEY), value_after(text, _TAGS)
    return special, unique_id, tags, keys, stored + added


# The bits of a message's ``sysFlag`` (apache/rocketmq ``MessageSysFlag``,
# ``CompressionType``).
class SysFlag:
    """Flags of a message for the store. They are plain ints: ``int & IntFlag`` would cost 0.7 µs,
    several times per message."""

    COMPRESSED: Final = 0x1
    MULTI_TAGS: Final = 0x2
    TRANSACTION_PREPARED: Final = 0x4
    TRANSACTION_COMMIT: Final = 0x8
    BORN_HOST_V6: Final = 0x10
    STORE_HOST_V6: Final = 0x20
    NEED_UNWRAP: Final = 0x40
    INNER_BATCH: Final = 0x80


TRANSACTION_MASK: Final = 0xC
"""Both transaction bits; both set means rolled back."""

COMPRESSION_MASK: Final = 0x700
LZ4: Final = 0x100
ZSTD: Final = 0x200
ZLIB: Final = 0x300
"""Compression type; 0 together with COMPRESSED is zlib too (clients before 5.0)."""


# Why a consumer could not handle a message, as a property of the copy that comes again or
# becomes a dead letter.
#
#     TURBOPUMP_FAILURE = attempt SP text   "3 ValueError: no stock": the attempt that failed,
#                                           counted from 1, and one line
#
# One rule: it says nothing about another attempt: a reader compares the number. Our own;
# Apache's clients and brokers carry it along like any property.
CONSUME_FAILURE: Final = "TURBOPUMP_FAILURE"
TEXT_MAX: Final = 300
"""Characters of a text that are kept."""


def failure_text(cause: BaseException | str) -> str:
    """One line without control characters: ``ValueError: no stock``, or what was said."""
    text = cause if isinstance(cause, str) else "".join(format_exception_only(cause))
    printable = "".join(each if each.isprintable() else " " for each in text[: 4 * TEXT_MAX])
    line = " ".join(printable.split())
    return line if len(line) <= TEXT_MAX else line[: TEXT_MAX - 1] + "…"


def with_failure(
    properties: Mapping[str, str], failure: str | None, attempt: int
) -> dict[str, str]:
    """The properties with the failure of this attempt, and of no other; without any if there is
    none or it has no room."""
    plain = {name: value for name, value in properties.items() if name != CONSUME_FAILURE}
    if not failure:
        return plain
    marked = {**plain, CONSUME_FAILURE: f"{attempt} {failure_text(failure)}"}
    size = len(property_bytes(encode_properties(marked)))
    return marked if size <= PROPERTIES_SIZE_MAX // 2 else plain


def consume_failure(properties: Mapping[str, str], attempt: int) -> str | None:
    """Return the reason in the properties for the failure of this attempt."""
    number, _, text = properties.get(CONSUME_FAILURE, "").partition(" ")
    return text if number == str(attempt) and text else None
