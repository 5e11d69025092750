"""Storage of messages by the broker itself, such as due delays and dead letters.

Due delays and timers, committed transactions, dead letters and records of operation queues enter
the store only here. The broker stores such messages even while it refuses sends for lack of space,
because undelivered messages keep the oldest segments from deletion. A message from a client
(``for_client``) is refused like a send. The append waits if the log needs a new file first, or if
the store is held because another replica becomes the master.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from turbopump.broker.counters.messages_in import MessagesIn
from turbopump.broker.flush_wait import FlushWait
from turbopump.clock import Clock
from turbopump.errors import RoomInMakingError, StoreClosedError
from turbopump.message.codec import encode_host
from turbopump.message.java import tags_code
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import (
    KEYS,
    TAGS,
    UNIQ_KEY,
    SysFlag,
    property_bytes,
    property_value,
    readable_text,
)
from turbopump.remoting.turns import Turns
from turbopump.store.log.commit_log import NewMessage, PutResult
from turbopump.store.message_store import MessageStore

_OUR_BITS = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6


class Forwarding:
    """Writer of the messages that the broker itself stores, such as due delays and dead letters.

    - ``store_host``: (ip, port), as written into entries.
    - ``on_forward``: a function that is called for each forwarded message with its new topic, its
      new queue id, and the time when it was first stored, in ms.
    - ``messages_in``: the metric of sent messages, which messages of the broker are no part of.
    - ``turns``: pauses that keep the event loop responsive while a caller forwards thousands.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        store_host: tuple[str, int],
        flush: FlushWait,
        on_forward: Callable[[str, int, int], None],
        messages_in: MessagesIn | None = None,
    ) -> None:
        self._messages_in = messages_in or MessagesIn()
        self._store = store
        self._clock = clock
        self.store_host = store_host
        self._encoded_host = encode_host(*store_host)
        self.flush = flush
        self._on_forward = on_forward
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._ended = False
        self.turns = Turns()

    async def forward(
        self,
        message: ReceivedMessage,
        topic: str,
        queue_id: int,
        *,
        properties: str | None = None,
        sys_flag: int | None = None,
        reconsume_times: int | None = None,
        prepared_transaction_offset: int = 0,
        for_client: bool = False,
        is_sent: bool = False,
    ) -> PutResult:
        """Store a copy of a stored message in another queue.

        Arguments that are not given keep their values: body (compressed or not), birth, flag,
        properties and so on. If the properties are unchanged and leave no space for the entry's
        CRC, the new entry has no CRC. Such messages were stored while ``enabledAppendPropCRC`` was
        off. The call waits if the log needs a new file. Raises the errors of ``MessageStore.put``,
        except RoomInMakingError.

        - ``is_sent``: True if the caller counts the message as sent.
        """
        put = partial(
            self.put_now,
            topic,
            queue_id,
            message.stored_body,
            message.properties_text if properties is None else properties,
            message.sys_flag if sys_flag is None else sys_flag,
            message.born_timestamp,
            message.born_host,
            flag=message.flag,
            reconsume_times=message.reconsume_times if reconsume_times is None else reconsume_times,
            prepared_transaction_offset=prepared_transaction_offset,
            own=not for_client,
            as_stored=properties is None and not for_client,
            is_sent=is_sent,
        )
        stored = await self._when_room(put)
        self._on_forward(topic, queue_id, message.store_timestamp)
        return stored

    async def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: str,
        *,
        sys_flag: int = 0,
        for_client: bool = False,
    ) -> PutResult:
        """Store a new message of the broker itself, with the present time as its birth time.

        The call waits if the log needs a new file. Raises the errors of ``MessageStore.put``,
        except RoomInMakingError.
        """
        now = self._clock.now_ms()
        put = partial(
            self.put_now,
            topic,
            queue_id,
            body,
            properties,
            sys_flag,
            now,
            self.store_host,
            own=not for_client,
        )
        return await self._when_room(put)

    async def confirmed(self, stored: PutResult) -> None:
        """Wait until a stored message is as safe as the settings promise.

        Only then may the caller record that the message has moved on. Raises StoreError if the disk
        has failed.
        """
        await self.flush.confirmed(stored.log_end)

    def room_made(self) -> None:
        """Repeat the waiting appends in their order. The log has a new file now, or the store is no
        longer held."""
        waiting = self._waiting
        self._waiting = deque()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def end_waits(self) -> None:
        """Refuse the appends that wait, because this broker stores nothing any more."""
        self._ended = True
        self.room_made()

    def put_now(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: str,
        sys_flag: int,
        born_timestamp: int,
        born_host: tuple[str, int],
        *,
        own: bool,
        flag: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        as_stored: bool = False,
        is_sent: bool = False,
    ) -> PutResult:
        """Store a message at once, without waiting for a new file of the log.

        - ``is_sent``: True if the caller counts the message as sent.

        Raises the errors of ``MessageStore.put``.
        """
        host = encode_host(*born_host)
        flags = sys_flag & ~_OUR_BITS
        if len(host) == 20:
            flags |= SysFlag.BORN_HOST_V6
        if len(self._encoded_host) == 20:
            flags |= SysFlag.STORE_HOST_V6
        text = readable_text(properties)
        tags = property_value(text, TAGS)
        message = NewMessage(
            body,
            property_bytes(properties),
            tags_code(tags) if tags else 0,
            flag,
            property_value(text, UNIQ_KEY),
            property_value(text, KEYS),
        )
        stored = self._store.put(
            topic,
            queue_id,
            message,
            sys_flag=flags,
            born_timestamp=born_timestamp,
            born_host=host,
            store_host=self._encoded_host,
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared_transaction_offset,
            own=own,
            as_stored=as_stored,
        )
        if not is_sent:
            self._messages_in.count_own(topic, stored.log_end - stored.offset)
        self.flush.begin_soon()
        return stored

    async def _when_room(self, put: Callable[[], PutResult]) -> PutResult:
        """Call ``put`` until it succeeds. After each failure wait until ``room_made`` is called."""
        while True:
            try:
                return put()
            except RoomInMakingError as error:
                if self._ended:
                    raise StoreClosedError(str(error)) from None
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(waiter)
                await waiter
