"""The frame of a send, written from prepared parts (``SendMessageV2.to_ext`` and the generic writer cost several times as much).

One rule: the bytes mean exactly what ``SendMessageV2`` (or ``SendBatchMessage``) with the same values means; a test compares them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from turbopump.client.routes import DEFAULT_TOPIC_QUEUES
from turbopump.message.message_queue import MessageQueue
from turbopump.message.rules import DEFAULT_TOPIC
from turbopump.protocol.codes import CURRENT_VERSION, FLAG_ONEWAY, RequestCode

_json: Final = msgspec.json.Encoder()
_TAIL: Final = b',"language":"PYTHON","serializeTypeCurrentRPC":"JSON","version":%d}' % CURRENT_VERSION
_ONEWAY: Final = b"%d" % FLAG_ONEWAY


class SendFrames:
    """Writes the send frames of one producer group; keeps the constant part per queue."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._heads: dict[tuple[MessageQueue, bool], bytes] = {}

    def encode(
        self,
        queue: MessageQueue,
        *,
        opaque: int,
        sys_flag: int,
        born_timestamp: int,
        flag: int,
        properties: str,
        body: bytes,
        batch: bool = False,
        oneway: bool = False,
    ) -> bytes:
        """One frame. ``properties`` in their text form; ``body`` as it goes into the store (compressed if ``sys_flag`` says so)."""
        head = self._heads.get((queue, batch))
        if head is None:
            head = self._heads[queue, batch] = self._head(queue, batch)
        header = b'%b,"f":"%d","g":"%d","h":"%d","i":%b},"flag":%b,"opaque":%d%b' % (
            head,
            sys_flag,
            born_timestamp,
            flag,
            _json.encode(properties),
            _ONEWAY if oneway else b"0",
            opaque,
            _TAIL,
        )
        size = len(header)
        return b"".join(((4 + size + len(body) << 32 | size).to_bytes(8), header, body))

    def _head(self, queue: MessageQueue, batch: bool) -> bytes:
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
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
        return b'{"code":%d,"extFields":%b' % (code, _json.encode(fields)[:-1])
