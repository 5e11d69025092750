"""``turbopump.client.message_finder`` without await."""

from __future__ import annotations

from typing import Unpack

from turbopump.blocking.on_loop_thread import OnLoopThread
from turbopump.client import message_finder as asyncio_message_finder
from turbopump.client.consuming.found_messages import FoundMessages, Time
from turbopump.client.settings import Surrounding
from turbopump.message.message import ReceivedMessage
from turbopump.message.message_queue import MessageQueue


class MessageFinder(OnLoopThread[asyncio_message_finder.MessageFinder]):
    """``turbopump.client.message_finder.MessageFinder`` without await. The same settings, methods
    and errors."""

    def __init__(
        self, namesrv: str | list[str] | tuple[str, ...], **settings: Unpack[Surrounding]
    ) -> None:
        super().__init__(lambda: asyncio_message_finder.MessageFinder(namesrv, **settings))

    def queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, sorted."""
        return self._call(self._ready().queues, topic)

    def view(self, topic: str, msg_id: str) -> ReceivedMessage:
        """The message with this id, unique or offset message id; see the asyncio ``view``."""
        return self._call(self._ready().view, topic, msg_id)

    def at(self, queue: MessageQueue, offset: int) -> ReceivedMessage:
        """The message at a queue offset."""
        return self._call(self._ready().at, queue, offset)

    def by_key(
        self,
        topic: str,
        key: str,
        max_messages: int = 32,
        *,
        begin: Time | None = None,
        end: Time | None = None,
    ) -> FoundMessages:
        """The newest messages of a topic that have this key, stored between two times (both count);
        see the asyncio ``by_key``."""
        return self._call(self._ready().by_key, topic, key, max_messages, begin=begin, end=end)

    def by_unique_id(self, topic: str, unique_id: str, max_messages: int = 32) -> FoundMessages:
        """Every message with this unique id."""
        return self._call(self._ready().by_unique_id, topic, unique_id, max_messages)

    def by_time(
        self, topic: str, begin: Time, end: Time | None = None, max_messages: int = 32
    ) -> FoundMessages:
        """The first messages of a topic, over all of its queues, that were stored between two times
        (both count)."""
        return self._call(self._ready().by_time, topic, begin, end, max_messages)
