"""Names of message properties, and the text form of properties for sending and storing.

::

    name 0x01 value 0x02 name 0x01 value 0x02 …        UTF-8; the last 0x02 may be absent

If a name occurs twice, the last value counts. Clients in C++ and PHP may write other bytes, such as
GBK. A broker stores and copies those bytes unchanged (``property_bytes``); readers see U+FFFD
instead, as Java's do. Source: apache/rocketmq ``MessageConst``,
``MessageDecoder.messageProperties2String``.
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
"""Maximum size of a property text in bytes: the stored length is a signed short."""


def encode_properties(properties: Mapping[str, str]) -> str:
    """Return the text form of message properties.

    Raise MessageError for a name or value that contains a separator and would be decoded
    differently. U+0001 in a value is allowed: clients in C++ nest property texts, and Java 5 reads
    them so.
    """
    parts = []
    for name, value in properties.items():
        if NAME_END in name or PAIR_END in name or PAIR_END in value:
            raise separator_inside(name)
        parts.append(f"{name}\x01{value}\x02")
    return "".join(parts)


def separator_inside(name: str) -> MessageError:
    """Return the error for a property that contains a separator."""
    return MessageError(
        f"property {name!r} holds the character U+0001 or U+0002, which separate properties; "
        "remove it"
    )


def decode_properties(text: str) -> dict[str, str]:
    """Return the names and values in a property text.

    A piece without a separator, a name or a value is skipped, as in Apache's reader.
    """
    properties: dict[str, str] = {}
    for pair in text.split(PAIR_END):
        name, _, value = pair.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties


def property_bytes(text: str) -> bytes:
    """Return a property text as the bytes to store.

    Bytes that were not UTF-8 are surrogates in the text (``surrogateescape``) and become the
    original bytes again. Other lone surrogates become ``?``, as in Java.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        pass
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def readable_text(text: str) -> str:
    """Return a property text with U+FFFD in place of bytes that are not UTF-8.

    Every reader of the stored bytes sees this text. Codes of tags and keys are computed from it.
    """
    return text if text.isascii() else property_bytes(text).decode("utf-8", "replace")


def whole_number(text: str | None, digits: int = 19) -> int | None:
    """Return the number that a text of ASCII digits represents, or None for any other text.

    More than ``digits`` digits are not a number.
    """
    if text is None or len(text) > digits or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def property_value(text: str, name: str) -> str | None:
    """Return the value of one property in a property text, or None if it is absent.

    The other properties are not decoded. Takes about 0.3 µs.
    """
    return value_after(text, name + NAME_END)


@has_twin
def value_after(text: str, needle: str) -> str | None:
    """Return the value of one property in a property text, faster than ``property_value``.

    ``needle`` is the name with its separator, built once by the caller.
    """
    at = text.rfind(needle)
    while at > 0 and text[at - 1] != PAIR_END:  # inside another name or a value
        at = text.rfind(needle, 0, at)
    if at < 0:
        return None
    at += len(needle)
    end = text.find(PAIR_END, at)
    value = text[at:] if end < 0 else text[at:end]
    # An empty value counts as absent: an earlier value of the name is then valid.
    return value or decode_properties(text).get(needle[:-1])


_UNIQ_KEY: Final = UNIQ_KEY + NAME_END
_TAGS: Final = TAGS + NAME_END
_KEYS: Final = KEYS + NAME_END


@has_twin
def send_properties(
    text: str, added: bytes
) -> tuple[bool, str | None, str | None, str | None, bytes]:
    """Read the broker's values from the property text of a sent message.

    Return in this order:

    - False if the message needs only to be stored, True if it may need more;
    - UNIQ_KEY, TAGS and KEYS;
    - the bytes to store: the text with a final separator, then ``added``.

    Takes about 1.2 µs, compiled 0.3.
    """
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
    unique_id = value_after(text, _UNIQ_KEY)
    tags = value_after(text, _TAGS)
    return special, unique_id, tags, keys, stored + added


# Bits of a message's ``sysFlag`` (apache/rocketmq ``MessageSysFlag``, ``CompressionType``).
class SysFlag:
    """Flags of a stored message.

    They are plain ints: ``int & IntFlag`` would cost 0.7 µs, several times for each message.
    """

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
"""Compression type zlib. A COMPRESSED message with type 0 is zlib too (clients before 5.0)."""


# Reason why a consumer failed to handle a message, as a property of the copy that is redelivered or
# becomes a dead letter.
#
#     TURBOPUMP_FAILURE = attempt SP text   "3 ValueError: no stock": the attempt that failed,
#                                           counted from 1, and one line
#
# The failure counts only for the attempt with its number. This property is ours; Apache's clients
# and brokers copy it like any other.
CONSUME_FAILURE: Final = "TURBOPUMP_FAILURE"
TEXT_MAX: Final = 300
"""Maximum length of a failure text in characters; the rest is cut off."""


def failure_text(cause: BaseException | str) -> str:
    """Return an exception or a reason as one line of text without control characters.

    An example is ``ValueError: no stock``.
    """
    text = cause if isinstance(cause, str) else "".join(format_exception_only(cause))
    printable = "".join(each if each.isprintable() else " " for each in text[: 4 * TEXT_MAX])
    line = " ".join(printable.split())
    return line if len(line) <= TEXT_MAX else line[: TEXT_MAX - 1] + "…"


def with_failure(
    properties: Mapping[str, str], failure: str | None, attempt: int
) -> dict[str, str]:
    """Return a message's properties with the failure of this delivery attempt added.

    An older failure is removed. A failure that does not fit into the properties is left out.
    """
    plain = {name: value for name, value in properties.items() if name != CONSUME_FAILURE}
    if not failure:
        return plain
    marked = {**plain, CONSUME_FAILURE: f"{attempt} {failure_text(failure)}"}
    size = len(property_bytes(encode_properties(marked)))
    return marked if size <= PROPERTIES_SIZE_MAX // 2 else plain


def consume_failure(properties: Mapping[str, str], attempt: int) -> str | None:
    """Return the failure of this delivery attempt from a message's properties, or None."""
    number, _, text = properties.get(CONSUME_FAILURE, "").partition(" ")
    return text if number == str(attempt) and text else None
