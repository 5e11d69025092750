"""Messages as JSON lines: what `produce` reads and `consume` writes.

    {"body": "text", "tags": "A", "keys": ["k1"], "properties": {"p": "v"}}

Its one rule: what `consume` writes (a line with `store_ms`), `produce` reads back as the same
message, without what brokers put into it. A body that is not UTF-8 text is `body_base64`; a body
may be written as any other JSON value, and is then sent as that JSON. It must not know clients.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from turbopump.errors import MessageError
from turbopump.message import properties as names
from turbopump.message.message import Message, ReceivedMessage
from turbopump.message.user_properties import handed_on

# What a received message carries beside its user's own properties: fields of the line, or marks of
# producer and broker that the next producer and broker set anew.
_NOT_THE_USERS = frozenset(
    {
        names.TAGS,
        names.KEYS,
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


class _MessageLine(msgspec.Struct, forbid_unknown_fields=False):
    body: Any = msgspec.UNSET
    body_base64: str | None = None
    tags: str | None = None
    keys: str | list[str] | None = None
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    store_ms: Any = None


_decoder = msgspec.json.Decoder(_MessageLine)


def read_message(line: bytes, topic: str, *, number: int) -> Message:
    """The message on a line; raises MessageError that names the line's number."""
    try:
        fields = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(
            f'line {number} is no message: {error}; {{"body": "…"}} is expected'
        ) from None
    body = _body(fields, number)
    was_received = fields.store_ms is not None
    try:
        message = Message(
            topic,
            body,
            tags=fields.tags,
            keys=fields.keys,
            properties=None if was_received else fields.properties,
        )
        if was_received:
            message.properties = {**handed_on(fields.properties), **message.properties}
        return message
    except MessageError as error:
        raise MessageError(f"line {number}: {error}") from None


def write_message(message: ReceivedMessage) -> bytes:
    """The line for a received message, without its end."""
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
    if user:
        line["properties"] = user
    try:
        line["body"] = message.body.decode("utf-8")
    except UnicodeDecodeError:
        line["body_base64"] = base64.b64encode(message.body).decode()
    return msgspec.json.encode(line)


def _body(fields: _MessageLine, number: int) -> bytes:
    if fields.body_base64 is not None:
        try:
            return base64.b64decode(fields.body_base64, validate=True)
        except binascii.Error as error:
            raise MessageError(f"line {number}: body_base64 is no base64: {error}") from None
    if fields.body is msgspec.UNSET:
        raise MessageError(f'line {number} has no body: {{"body": "…"}} is expected')
    return (
        fields.body.encode() if isinstance(fields.body, str) else msgspec.json.encode(fields.body)
    )


# Standard input in an event loop: what has arrived, as it arrives, from a pipe, a terminal or
# a file. Its one rule: a Ctrl-C while it waits ends the command at once. So a daemon thread reads
# (the loop's own executor would be waited for at the end, and epoll takes no files).
LINE_SIZE_MAX: Final = 32 * 1024 * 1024
"""Bytes: a JSON body of 4 MiB in which every byte is escaped fits."""
CHUNK_SIZE: Final = 1 << 16
CHUNKS_AHEAD: Final = 4
STANDARD_INPUT: Final = 0


async def lines_as_they_arrive() -> AsyncIterator[list[bytes]]:
    """The lines that have arrived since the last turn, without their ends; the last one may have
    none.

    Raises MessageError for a line that is longer than `LINE_SIZE_MAX`.
    """
    rest = b""
    async for chunk in _chunks(sys.stdin.fileno() if sys.stdin is not None else STANDARD_INPUT):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_SIZE_MAX:
            raise MessageError(f"a line of the input is longer than {LINE_SIZE_MAX} bytes")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest.removesuffix(b"\r")]


async def _chunks(fd: int) -> AsyncIterator[bytes]:
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
            except RuntimeError:  # the loop has closed: nobody wants it any more
                return

    threading.Thread(target=read, name="standard-input", daemon=True).start()
    while chunk := await arrived.get():
        if isinstance(chunk, OSError):
            raise chunk
        room.release()
        yield chunk
