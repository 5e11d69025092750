"""Requests that wait for their reply, by correlation id, and the replies that brokers push (326).

One rule: a reply goes to the request whose id it carries, once; any other one is late or nobody's:
dropped, counted, and to the broker as good as any, for the one who replied has done nothing wrong.
It must not know how requests are sent. Source: apache/rocketmq ``RequestFutureHolder``,
``ClientRemotingProcessor.receiveReplyMessage``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from turbopump.errors import RequestError
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import CORRELATION_ID, PAIR_END, REPLY_ARRIVE_TIME, property_value
from turbopump.message.sysflag import SysFlag
from turbopump.protocol.requests.replies import PushReplyMessageToClient
from turbopump.remoting.router import RequestContext, Response

PENDING_MAX: Final = 10_000
_MAGICS: Final = (bytes.fromhex("04224d18"), bytes.fromhex("28b52ffd"))
"""How an LZ4 frame and ZSTD begin; a zlib stream has a check in its first two bytes."""


class PendingRequests:
    """Those of one client id; ``limit`` is the most that may wait at a time."""

    def __init__(self, now_ms: Callable[[], int], limit: int = PENDING_MAX) -> None:
        self.limit = limit
        self.late = 0
        """Replies that came when nobody waited for them (any more)."""
        self._now_ms = now_ms
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, correlation_id: str) -> asyncio.Future[ReceivedMessage]:
        """From now on a reply is waited for; the future gets it. Raises RequestError if too many
        are."""
        if len(self._waiting) >= self.limit:
            raise RequestError(
                f"{len(self._waiting)} requests of this client wait for replies, and that is the "
                "most that may; "
                "wait for some before you send more, or check that somebody replies to them"
            )
        assert correlation_id not in self._waiting
        future: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        return future

    def remove(self, correlation_id: str) -> None:
        """Nobody waits any more."""
        self._waiting.pop(correlation_id, None)

    def reply_came(self, push: PushReplyMessageToClient, context: RequestContext) -> Response:
        """A broker brings a reply."""
        text = push.properties or ""
        future = self._waiting.pop(property_value(text, CORRELATION_ID) or "", None)
        if future is None or future.done():
            self.late += 1
        else:
            future.set_result(_reply_of(push, text, context.body, self._now_ms()))
        return Response()


def _reply_of(
    push: PushReplyMessageToClient, properties: str, body: bytes, now_ms: int
) -> ReceivedMessage:
    """The message that the reply is; a compressed body is decompressed when it is first asked
    for."""
    if properties and properties[-1] != PAIR_END:
        properties += PAIR_END
    return ReceivedMessage(
        topic=push.topic,
        stored_body=body,
        properties_text=f"{properties}{REPLY_ARRIVE_TIME}\x01{now_ms}\x02",
        queue_id=push.queue_id,
        queue_offset=0,
        commit_log_offset=0,
        flag=push.flag,
        sys_flag=push.sys_flag if _may_be_compressed(body) else push.sys_flag & ~SysFlag.COMPRESSED,
        born_timestamp=push.born_timestamp,
        born_host=_host(push.born_host),
        store_timestamp=push.store_timestamp,
        store_host=_host(push.store_host),
        reconsume_times=push.reconsume_times or 0,
        prepared_transaction_offset=0,
        body_crc=0,
        store_size=0,
    )


def _may_be_compressed(body: bytes) -> bool:
    """Go's client sends a long reply as it is, and says that it is compressed; Java's then takes it
    as it is."""
    return body[:4] in _MAGICS or (
        len(body) > 1 and body[0] & 0x0F == 8 and int.from_bytes(body[:2]) % 31 == 0
    )


def _host(text: str) -> tuple[str, int]:
    """``ip:port`` as Java writes it, an IPv6 address without brackets."""
    ip, _, port = text.rpartition(":")
    return ip.strip("[]"), int(port) if port.isascii() and port.isdigit() else 0
