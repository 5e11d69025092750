"""What a message is: as a user sends it (``Message``) and as a consumer gets it (``ReceivedMessage``).

The stored bytes are in ``codec.py``; the rules for names and sizes are in ``rules.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from turbopump.message import properties as names
from turbopump.message.compression import decompress
from turbopump.message.ids import offset_msg_id
from turbopump.message.properties import decode_properties
from turbopump.message.sysflag import SysFlag

BODY_SIZE_MAX: Final = 4 * 1024 * 1024
"""Bytes; Apache's default ``maxMessageSize`` on both sides."""


class Message:
    """A message to send.

    ``body`` bytes (a str is encoded as UTF-8); ``tags`` one tag for filters; ``keys`` one key or several, for look-ups;
    ``properties`` your own string pairs; ``flag`` an int of your own that travels along. ``wait_store_ok`` False: the broker need
    not wait for its disk or slaves before it answers.
    """

    __slots__ = ("body", "flag", "properties", "topic")

    def __init__(
        self,
        topic: str,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        wait_store_ok: bool = True,
    ) -> None:
        self.topic = topic
        self.body = body.encode() if isinstance(body, str) else bytes(body)
        self.flag = flag
        self.properties: dict[str, str] = dict(properties) if properties else {}
        if tags:
            self.properties[names.TAGS] = tags
        if keys:
            self.properties[names.KEYS] = keys if isinstance(keys, str) else names.KEY_SEPARATOR.join(keys)
        if not wait_store_ok:
            self.properties[names.WAIT_STORE_MSG_OK] = "false"

    def __repr__(self) -> str:
        return f"Message(topic={self.topic!r}, body={len(self.body)} B, tags={self.tags!r}, keys={self.keys!r})"

    @property
    def tags(self) -> str | None:
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(names.KEYS, "").split()

    @property
    def wait_store_ok(self) -> bool:
        return self.properties.get(names.WAIT_STORE_MSG_OK) != "false"

    def with_property(self, name: str, value: str) -> Message:
        """A copy that has this property too."""
        return Message(self.topic, self.body, properties={**self.properties, name: value}, flag=self.flag)


class ReceivedMessage:
    """A message as the broker stored it. Offsets: ``queue_offset`` counts messages of its queue, ``commit_log_offset`` bytes.

    Times in ms since 1970 UTC; hosts are (ip, port). Properties and a compressed body are decoded when first asked for.
    """

    __slots__ = (
        "_body",
        "_properties",
        "_properties_text",
        "body_crc",
        "born_host",
        "born_timestamp",
        "broker_name",
        "commit_log_offset",
        "flag",
        "prepared_transaction_offset",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "store_host",
        "store_size",
        "store_timestamp",
        "stored_body",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        *,
        topic: str,
        stored_body: bytes,
        properties_text: str,
        queue_id: int,
        queue_offset: int,
        commit_log_offset: int,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: tuple[str, int],
        store_timestamp: int,
        store_host: tuple[str, int],
        reconsume_times: int,
        prepared_transaction_offset: int,
        body_crc: int,
        store_size: int,
        broker_name: str = "",
    ) -> None:
        self.topic = topic
        self.stored_body = stored_body
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.commit_log_offset = commit_log_offset
        self.flag = flag
        self.sys_flag = sys_flag
        self.born_timestamp = born_timestamp
        self.born_host = born_host
        self.store_timestamp = store_timestamp
        self.store_host = store_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        self.body_crc = body_crc
        self.store_size = store_size
        self.broker_name = broker_name
        self._properties_text = properties_text
        self._properties: dict[str, str] | None = None
        self._body: bytes | None = None

    def __repr__(self) -> str:
        return (
            f"ReceivedMessage(topic={self.topic!r}, queue_id={self.queue_id}, queue_offset={self.queue_offset}, "
            f"msg_id={self.msg_id!r}, body={len(self.stored_body)} B)"
        )

    @property
    def body(self) -> bytes:
        """The body as it was sent (decompressed). Raises StoredMessageError if it cannot be decompressed."""
        if self._body is None:
            compressed = self.sys_flag & SysFlag.COMPRESSED
            self._body = decompress(self.stored_body, self.sys_flag) if compressed else self.stored_body
        return self._body

    @property
    def properties(self) -> dict[str, str]:
        """Every property, the system's among them (``turbopump.message.properties`` has their names), but for ``__CRC32#``: that one
        belongs to the stored bytes, which are others wherever the message is stored next."""
        if self._properties is None:
            self._properties = decode_properties(self._properties_text)
            self._properties.pop(names.CRC32, None)
        return self._properties

    @property
    def tags(self) -> str | None:
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(names.KEYS, "").split()

    @property
    def msg_id(self) -> str:
        """The id the producer gave it (UNIQ_KEY), else the offset id."""
        return self.properties.get(names.UNIQ_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """Where it is stored: broker address and commit-log offset, in hex."""
        return offset_msg_id(self.store_host[0], self.store_host[1], self.commit_log_offset)
