"""JSON lines that stand for messages. `produce` reads these lines, and `consume` writes them.

    {"body": "text", "tags": "A", "keys": ["k1"], "properties": {"p": "v"}}

An unknown field is refused, so that nothing on a line is dropped silently. `produce` accepts lines
of `consume`, `message` and `dlq export` (with `store_ms` or `died_ms`), and sends the same message
without the additions of brokers.

- `body`: text, or any other JSON value, which is sent as that JSON.
- `body_base64`: a body that is not UTF-8 text, or the stored bytes of an unreadable body.
- `body_fault`: reason why a body is unreadable.

Clients are unknown here.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import codecs
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from turbopump.cli.tables import Column
from turbopump.cli.values import QueueName, queue_name, time_ms
from turbopump.errors import MessageError, StoredMessageError
from turbopump.message import properties as names
from turbopump.message.message import Message, ReceivedMessage
from turbopump.message.rules import did_you_mean
from turbopump.message.user_properties import handed_on

# Properties of a received message that are no properties of the line: they are other fields of the
# line, or marks that the next producer and broker set again.
_NOT_THE_USERS = frozenset(
    {
        names.TAGS,
        names.KEYS,
        names.SHARDING_KEY,
        names.UNIQ_KEY,
        names.WAIT_STORE_MSG_OK,
        names.MSG_REGION,
        names.TRACE_SWITCH,
        names.CLUSTER,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        names.INNER_NUM,
        names.CRC32,
        names.POP_CK,
        names.PRODUCER_GROUP,
        names.REAL_TOPIC,
        names.REAL_QUEUE_ID,
        names.RETRY_TOPIC,
    }
)


class _Given(msgspec.Struct):
    """Fields of a JSON line for a message to send."""

    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    body_base64: str | None = None
    tags: str | None = None
    keys: str | list[str] | None = None
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    sharding_key: str | int | None = None
    queue: int | str | None = None
    delay_level: int | None = None
    delay: float | None = None
    deliver_at: int | str | None = None


class _MessageLine(_Given, forbid_unknown_fields=True):
    """All allowed fields of a JSON line, including those of a received message."""

    store_ms: Any = None
    died_ms: Any = None
    topic: Any = None
    broker: Any = None
    queue_id: Any = None
    queue_offset: Any = None
    msg_id: Any = None
    born_ms: Any = None
    offset_msg_id: Any = None
    commit_log_offset: Any = None
    born_host: Any = None
    store_host: Any = None
    reconsume_times: Any = None
    group: Any = None
    origin_topic: Any = None
    origin_msg_id: Any = None
    attempts: Any = None
    body_fault: Any = None


_FIELDS: Final = _Given.__struct_fields__
_OF_A_RECEIVED_ONE: Final = _MessageLine.__struct_fields__[len(_FIELDS) :]
_MEANT: Final[Mapping[str, str]] = {"queue_id": "queue", "broker": "queue"}
"""Fields of a received message, with the field that the user probably meant."""
_WANTED: Final[Mapping[str, str]] = {
    "body_base64": "text",
    "tags": "one text",
    "keys": "a text or a list of texts",
    "properties": 'names and texts, as in {"p": "1"}',
    "sharding_key": "a text or a whole number",
    "queue": 'a number, or "BROKER:NUMBER"',
    "delay_level": "a whole number",
    "delay": "a number of seconds",
    "deliver_at": "ms since 1970, or a time as text",
}
_WRONG_TYPE: Final = re.compile(r"got `(\w+)` - at `(?:key in )?\$\.(\w+)")
_UNKNOWN: Final = re.compile(r"unknown field `(.*?)`")
_decoder = msgspec.json.Decoder(_MessageLine)


@dataclass(frozen=True, slots=True)
class LineDefaults:
    """Default values of fields. They apply if a JSON line lacks the field.

    ``time`` is empty, or has one of Message's ``delay_level``, ``delay`` and ``deliver_at`` with
    its value.
    """

    tags: str | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    sharding_key: str | None = None
    queue: QueueName | None = None
    time: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LineToSend:
    """Message to send, with the choice of a queue.

    ``queue`` names the queue, or ``sharding_key`` chooses the queue. If both are None, any queue
    may be used.
    """

    message: Message
    sharding_key: str | int | None = None
    queue: QueueName | None = None


NO_DEFAULTS: Final = LineDefaults()


def raw_message(body: bytes, topic: str, defaults: LineDefaults = NO_DEFAULTS) -> LineToSend:
    """Return a message to send with this body.

    Raises MessageError if the message is invalid.
    """
    message = Message(
        topic,
        body,
        tags=defaults.tags,
        keys=defaults.keys,
        properties=defaults.properties,
        **defaults.time,
    )
    return LineToSend(message, defaults.sharding_key, defaults.queue)


def read_message(
    line: bytes, topic: str, *, number: int, defaults: LineDefaults = NO_DEFAULTS
) -> LineToSend:
    """Parse a JSON line as a message to send.

    Raises MessageError, with the line number, if the line is invalid.
    """
    try:
        fields = _decoder.decode(line)
        body = _body_text(fields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        unknown = _UNKNOWN.search(str(error))
        if unknown is not None:
            near = did_you_mean(unknown[1], _FIELDS)
            raise MessageError(
                f"line {number}: the field {unknown[1]!r} is not known{near}; a message has "
                f"{', '.join(_FIELDS)}"
            ) from None
        wrong = _WRONG_TYPE.search(str(error))
        if wrong is not None and wrong[2] in _WANTED:
            raise MessageError(
                f"line {number}: {wrong[2]} must be {_WANTED[wrong[2]]}, not {wrong[1]}"
            ) from None
        if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise MessageError(f"line {number} is UTF-16; the input must be UTF-8") from None
        raise MessageError(
            f'line {number} is not a message: {error}; expected {{"body": "…"}}, or --raw '
            "for lines that are bodies"
        ) from None
    was_received = fields.store_ms is not None or fields.died_ms is not None
    if not was_received:
        _refuse_fields_of_a_received_one(fields, topic, number)
    try:
        message = Message(
            topic,
            _body(fields, body),
            tags=defaults.tags if fields.tags is None else fields.tags,
            keys=defaults.keys if fields.keys is None else fields.keys,
            properties=None if was_received else fields.properties,
            **(_time(fields) or defaults.time),
        )
        received = handed_on(fields.properties) if was_received else {}
        message.properties = {**defaults.properties, **received, **message.properties}
        return _aimed(message, fields, defaults)
    except MessageError as error:
        raise MessageError(f"line {number}: {error}") from None


def _aimed(message: Message, fields: _MessageLine, defaults: LineDefaults) -> LineToSend:
    """Choose the queue for a message, from the fields of its JSON line and the defaults.

    Raises MessageError if the queue is invalid, or if the line also has a sharding key.
    """
    if fields.queue is not None:
        queue = queue_name(str(fields.queue))
        if queue is None:
            raise MessageError(
                f"queue {fields.queue!r} is not a queue: expected a number, or BROKER:NUMBER"
            )
        if fields.sharding_key is not None:
            raise MessageError("queue and sharding_key both choose the queue; give one of them")
        return LineToSend(message, queue=queue)
    key = fields.sharding_key
    if key is None:
        key = message.properties.pop(names.SHARDING_KEY, defaults.sharding_key)
    if key is None:
        return LineToSend(message, queue=defaults.queue)
    return LineToSend(message, key)


def _refuse_fields_of_a_received_one(fields: _MessageLine, topic: str, number: int) -> None:
    for name in _OF_A_RECEIVED_ONE:
        value = getattr(fields, name)
        if value is None or (name == "topic" and value == topic):
            continue
        if name == "topic":
            raise MessageError(
                f"line {number} has the topic {value!r}, but the command sends to {topic}"
            )
        meant = f"; give {_MEANT[name]!r}" if name in _MEANT else ""
        raise MessageError(
            f"line {number}: the field {name!r} belongs to a received message, as in a "
            f"line from `consume` (with store_ms){meant}"
        )


def _time(fields: _MessageLine) -> dict[str, Any]:
    """Return the delivery time in a JSON line, as keyword arguments of Message.

    Raises MessageError if ``deliver_at`` is not a time.
    """
    at = fields.deliver_at
    if isinstance(at, str):
        found = time_ms(at)
        if found is None:
            raise MessageError(
                f"deliver_at {at!r} is not a time: expected 2026-11-21T08:30:00 or ms since 1970"
            )
        at = found
    given = {"delay_level": fields.delay_level, "delay": fields.delay, "deliver_at": at}
    return {name: value for name, value in given.items() if value is not None}


MESSAGE_COLUMNS: Final = (
    *(Column(key) for key in ("topic", "broker", "queue_id", "queue_offset", "msg_id")),
    *(Column(key) for key in ("born_ms", "store_ms", "tags", "keys", "body", "body_base64")),
)
"""Columns of a message in CSV."""


def message_row(message: ReceivedMessage, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a received message as the fields of its JSON line.

    The fields ``more`` come last.
    """
    user = {key: value for key, value in message.properties.items() if key not in _NOT_THE_USERS}
    line: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "msg_id": message.msg_id,
        "born_ms": message.born_timestamp,
        "store_ms": message.store_timestamp,
    }
    if message.tags is not None:
        line["tags"] = message.tags
    if message.keys:
        line["keys"] = message.keys
    if names.SHARDING_KEY in message.properties:
        line["sharding_key"] = message.properties[names.SHARDING_KEY]
    if user:
        line["properties"] = user
    return {**line, **body_fields(message), **(more or {})}


def write_message(message: ReceivedMessage, more: Mapping[str, Any] | None = None) -> bytes:
    """Return the JSON line for a received message, without a line end. ``more`` is as above."""
    return json_line(message_row(message, more))


def json_line(row: Mapping[str, Any]) -> bytes:
    """Return a row as JSON on one line, without a line end. The form is that of ``json.dumps``."""
    return msgspec.json.format(msgspec.json.encode(row), indent=0)


def body_fields(message: ReceivedMessage) -> dict[str, str]:
    """Return the body of a received message as fields of a JSON line."""
    body, fault = body_or_stored(message)
    if fault is not None:
        return {"body_base64": base64.b64encode(body).decode(), "body_fault": fault}
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def body_or_stored(message: ReceivedMessage) -> tuple[bytes, str | None]:
    """Return the body of a message, and None. If the body is unreadable, return the stored bytes
    and the reason."""
    try:
        return message.body, None
    except StoredMessageError as error:
        return message.stored_body, str(error)


def _body_text(fields: _MessageLine) -> str | None:
    """Return the message body from the field ``body``, as text. Return None if the line lacks the
    field.

    If the field is a string, the body is the content of the string. Any other JSON value is
    returned exactly as written, because a parser would change numbers. Raises DecodeError or
    UnicodeDecodeError if the JSON is invalid.
    """
    if fields.body is msgspec.UNSET:
        return None
    written = bytes(fields.body)
    if written.startswith(b'"'):
        return msgspec.json.decode(written, type=str)
    return written.decode()


def _body(fields: _MessageLine, text: str | None) -> bytes:
    if fields.body_base64 is not None:
        if fields.body is not msgspec.UNSET:
            raise MessageError("body and body_base64 are both given; give one of them")
        try:
            return base64.b64decode(fields.body_base64, validate=True)
        except binascii.Error as error:
            raise MessageError(f"body_base64 is not base64: {error}") from None
    if fields.body is msgspec.UNSET and fields.body_fault is not None:
        raise MessageError(
            f"its body could not be read ({fields.body_fault!s:.200}), and the line lacks "
            "the stored bytes: write the line again with this release, or give body or "
            "body_base64"
        )
    if fields.body is msgspec.UNSET:
        raise MessageError('no body: expected {"body": "…"}')
    assert text is not None
    return text.encode()


# Standard input in an event loop, as it arrives from a pipe, a terminal or a file. Ctrl-C during a
# wait must end the command at once, so a daemon thread reads. The loop's own executor would be
# joined at the end, and epoll does not accept files.
LINE_SIZE_MAX: Final = 32 * 1024 * 1024
"""Maximum size of a line in bytes. A JSON body of 4 MiB fits even if every byte is escaped."""
CHUNK_SIZE: Final = 1 << 16
CHUNKS_AHEAD: Final = 4
STANDARD_INPUT: Final = 0


async def whole_input() -> bytes:
    """Return all of standard input as bytes.

    Raises MessageError if the input is longer than `LINE_SIZE_MAX`.
    """
    chunks = bytearray()
    async for chunk in _chunks():
        chunks += chunk
        if len(chunks) > LINE_SIZE_MAX:
            raise MessageError(f"the input is longer than {LINE_SIZE_MAX} bytes")
    return bytes(chunks)


async def lines_as_they_arrive() -> AsyncIterator[list[bytes]]:
    """Yield lists of lines from standard input, each list as soon as its lines arrive.

    The lines are without line ends. The last line may lack its end. A UTF-8 byte-order mark at the
    start is dropped. Raises MessageError for a line longer than `LINE_SIZE_MAX`.
    """
    rest = b""
    begun = False
    async for chunk in _chunks():
        *lines, rest = (rest + chunk).split(b"\n")
        if lines and not begun:
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
            begun = True
        if len(rest) > LINE_SIZE_MAX:
            raise MessageError(f"a line of the input is longer than {LINE_SIZE_MAX} bytes")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if not begun:
        rest = rest.removeprefix(codecs.BOM_UTF8)
    if rest:
        yield [rest.removesuffix(b"\r")]


async def _chunks() -> AsyncIterator[bytes]:
    fd = sys.stdin.fileno() if sys.stdin is not None else STANDARD_INPUT
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD)

    def read() -> None:
        chunk: bytes | OSError = b"more"
        while chunk and not isinstance(chunk, OSError):
            room.acquire()
            try:
                chunk = os.read(fd, CHUNK_SIZE)
            except OSError as error:
                chunk = error
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, chunk)
            except RuntimeError:  # the loop has closed, and the lines are no longer needed
                return

    threading.Thread(target=read, name="standard-input", daemon=True).start()
    while chunk := await arrived.get():
        if isinstance(chunk, OSError):
            raise chunk
        room.release()
        yield chunk
