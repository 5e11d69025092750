"""The frame of a send, written from prepared parts (``SendMessageV2.to_ext`` and the generic writer
cost several times as much).

One rule: the bytes mean exactly what ``SendMessageV2`` (``SendBatchMessage``,
``SendReplyMessageV2``) with the same values means, dressed as ``identity.py`` says; tests compare
them.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final, NamedTuple

import msgspec

from turbopump.client.identity import Dress
from turbopump.client.routes import DEFAULT_TOPIC_QUEUES
from turbopump.message.message_queue import MessageQueue
from turbopump.message.rules import DEFAULT_TOPIC
from turbopump.protocol.codes import CURRENT_VERSION, FLAG_ONEWAY, RequestCode

_json: Final = msgspec.json.Encoder()
_TAIL: Final = (
    b',"language":"PYTHON","serializeTypeCurrentRPC":"JSON","version":%d}' % CURRENT_VERSION
)
_ONEWAY: Final = b"%d" % FLAG_ONEWAY


class _Head(NamedTuple):
    """What is the same for every message to a queue: the beginning of the header, and what of the
    signed content stands before and after the values that change."""

    header: bytes
    signed_before: str
    signed_after: str


class SendFrames:
    """Writes the send frames of one producer group; keeps the constant part per queue. ``code``:
    what a single message is sent as."""

    def __init__(
        self, group: str, dress: Dress | None = None, code: int = RequestCode.SEND_MESSAGE_V2
    ) -> None:
        self._group = group
        self._code = code
        self._dress = dress
        self._signs = dress is not None and dress.signs
        self._heads: dict[tuple[MessageQueue, bool], _Head] = {}

    def encode(
        self,
        queue: MessageQueue,
        opaque: int,
        sys_flag: int,
        born_timestamp: int,
        flag: int,
        properties: str,
        body: bytes,
        batch: bool = False,
        oneway: bool = False,
    ) -> bytes:
        """One frame. ``properties`` in their text form; ``body`` as it goes into the store
        (compressed if ``sys_flag`` says so)."""
        head = self._heads.get((queue, batch))
        if head is None:
            head = self._heads[queue, batch] = self._head(queue, batch)
        signature = b""
        if self._signs:
            assert self._dress is not None
            content = f"{head.signed_before}{sys_flag}{born_timestamp}{flag}{properties}{head.signed_after}"
            signature = (
                b',"Signature":"%b"' % self._dress.signature(content.encode(), body).encode()
            )
        header = b'%b,"f":"%d","g":"%d","h":"%d","i":%b%b},"flag":%b,"opaque":%d%b' % (
            head.header,
            sys_flag,
            born_timestamp,
            flag,
            _json.encode(properties),
            signature,
            _ONEWAY if oneway else b"0",
            opaque,
            _TAIL,
        )
        size = len(header)
        return b"".join(((4 + size + len(body) << 32 | size).to_bytes(8), header, body))

    def _head(self, queue: MessageQueue, batch: bool) -> _Head:
        code = RequestCode.SEND_BATCH_MESSAGE if batch else self._code
        fields = {
            "a": self._group,
            "b": queue.topic,
            "c": DEFAULT_TOPIC,
            "d": str(DEFAULT_TOPIC_QUEUES),
            "e": str(queue.queue_id),
            "j": "0",
            "k": "false",
            "m": "true" if batch else "false",
            "n": queue.broker_name,
        }
        if self._dress is not None:
            fields |= self._dress.fields
        names = sorted(fields)
        return _Head(
            b'{"code":%d,"extFields":%b' % (code, _json.encode(fields)[:-1]),
            "".join(fields[name] for name in names if name < "f"),
            "".join(fields[name] for name in names if name > "i"),
        )


class NotedFrames(SendFrames):
    """The same; the names of the brokers that they are for go to the notes of this context, if it
    has any."""

    notes: Final[ContextVar[list[str] | None]] = ContextVar("brokers asked", default=None)

    def encode(self, queue: MessageQueue, *values: Any, **switches: Any) -> bytes:
        notes = self.notes.get()
        if notes is not None:
            notes.append(queue.broker_name)
        return super().encode(queue, *values, **switches)
