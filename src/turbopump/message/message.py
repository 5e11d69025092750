"""Messages: ``Message`` to send, and ``ReceivedMessage`` as a consumer gets it.

The stored bytes are in ``entry.py`` and ``codec.py``; the rules for names and sizes are in
``rules.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turbopump.errors import MessageError, StoredMessageError
from turbopump.message import properties as names
from turbopump.message.compression import decompress
from turbopump.message.delivery_time import time_properties
from turbopump.message.entry import HEAD_FIELDS, body_of, head_field_of, properties_text_of
from turbopump.message.ids import offset_msg_id
from turbopump.message.java import Int32
from turbopump.message.properties import SysFlag, decode_properties
from turbopump.message.rules import tag_fault
from turbopump.message.user_properties import checked_properties, text_pairs, user_properties

BODY_SIZE_MAX: Final = 4 * 1024 * 1024
"""Maximum size of a body in bytes, Apache's default ``maxMessageSize`` on both sides."""
FLAG_MIN: Final = -(2**31)
FLAG_MAX: Final = 2**31 - 1


class Message:
    """A message to send.

    - ``topic``: the name of the topic.
    - ``body``: bytes, or a str, which is encoded as UTF-8.
    - ``tags``: one tag, by which consumers can filter.
    - ``keys``: one key or several, by which the message can be looked up.
    - ``properties``: your own pairs of strings, not empty, under names that RocketMQ does not use.
      The properties of a received message are allowed too (docs/guide/producing.md).
    - ``flag``: a number of your own (32 bits, signed) that travels with the message.
    - ``wait_store_ok``: False lets the broker answer before its disk or slaves have the message.
    - ``delay_level``: deliver after the delay that the broker's table has for this level
      (docs/guide/delayed-messages.md). 0 means at once.
    - ``deliver_at``: deliver at this time (ms since 1970 UTC, or a datetime).
    - ``delay``: deliver after this time (seconds, or a timedelta).

    Raise MessageError for invalid values, and if more than one of the last three is given.
    """

    __slots__ = ("body", "flag", "properties", "topic")
    __hash__ = None  # type: ignore[assignment]  # it may be changed

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
        delay_level: int = 0,
        deliver_at: int | datetime | None = None,
        delay: float | timedelta | None = None,
    ) -> None:
        if type(topic) is not str and not isinstance(topic, str):
            raise MessageError(
                f"topic={topic!r:.80} is not a topic: expected its name, such as 'orders'"
            )
        self.topic = topic
        self.body = body if type(body) is bytes else bytes_of_body(body)
        self.flag = checked_flag(flag) if flag or type(flag) is not int else 0
        self.properties: dict[str, str] = (
            {} if properties is None else checked_properties(properties)
        )
        if tags is not None:
            if not isinstance(tags, str):
                raise MessageError(
                    f"tags={tags!r:.80} is not a tag: expected one str, as in tags='paid'"
                )
            if tags:
                if (fault := tag_fault(tags)) is not None:
                    raise MessageError(f"tags={tags!r:.80} {fault}: no consumer could ask for it")
                self.properties[names.TAGS] = tags
        if keys is not None:
            joined = keys if isinstance(keys, str) else _joined(keys)
            if joined:
                self.properties[names.KEYS] = joined
        if wait_store_ok is not True:
            if wait_store_ok is not False:
                raise MessageError(f"wait_store_ok={wait_store_ok!r:.80} must be True or False")
            self.properties[names.WAIT_STORE_MSG_OK] = "false"
        if delay_level:
            if delay_level.__class__ is not int or not 0 < delay_level < 1000:
                raise MessageError(
                    f"delay_level={delay_level!r} is not a level: expected a number from "
                    "1 (1 s) to 18 (2 h), or 0"
                )
            self.properties[names.DELAY_TIME_LEVEL] = str(delay_level)
        if deliver_at is not None or delay is not None:
            if delay_level or None not in (deliver_at, delay):
                raise MessageError(
                    "more than one of delay_level, deliver_at and delay is given; "
                    "a message has one time"
                )
            self.properties.update(time_properties(deliver_at, delay))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return (self.topic, self.body, self.properties, self.flag) == (
            other.topic,
            other.body,
            other.properties,
            other.flag,
        )

    def __repr__(self) -> str:
        return (
            f"Message(topic={self.topic!r}, body={len(self.body)} B, tags={self.tags!r}, "
            f"keys={self.keys!r})"
        )

    @property
    def tags(self) -> str | None:
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(names.KEYS, "").split()

    @property
    def wait_store_ok(self) -> bool:
        return self.properties.get(names.WAIT_STORE_MSG_OK) != "false"

    @property
    def user_properties(self) -> dict[str, str]:
        """Properties that the sender added, without RocketMQ's own such as tags and keys.

        They may be given to another ``Message``.
        """
        return user_properties(self.properties)

    def with_property(self, name: str, value: str) -> Message:
        """Return a copy of the message with one more property.

        Raise MessageError if the property is not allowed.
        """
        properties = {**self.properties, **checked_properties({name: value})}
        return Message.as_it_is(self.topic, self.body, properties, self.flag)

    @classmethod
    def as_it_is(
        cls, topic: str, body: bytes | str, properties: Mapping[str, str], flag: int = 0
    ) -> Message:
        """Return a message that may also have RocketMQ's own properties.

        This is for the code of this package only. Raise MessageError if a value is invalid.
        """
        message = cls(topic, body, flag=flag)
        message.properties = text_pairs(properties)
        return message


def bytes_of_body(body: object) -> bytes:
    """Return the body of a message as bytes.

    Raise MessageError if the body is neither bytes nor text.
    """
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError as error:
            raise MessageError(
                f"body={body!r:.80} has a lone surrogate at {error.start}, which is not "
                "text; give valid Unicode, or bytes"
            ) from None
    try:
        return bytes(memoryview(body))  # type: ignore[arg-type]
    except TypeError:
        raise MessageError(
            f"a body is bytes or a str, not {type(body).__name__}; encode it first, as in "
            "json.dumps(value) or str(value)"
        ) from None


def checked_flag(flag: object) -> int:
    """Return the flag of a message unchanged if it is valid.

    Raise MessageError if the flag is not a signed 32-bit int.
    """
    if not isinstance(flag, int) or isinstance(flag, bool) or not FLAG_MIN <= flag <= FLAG_MAX:
        raise MessageError(
            f"flag={flag!r:.80} does not fit: expected a whole number from {FLAG_MIN} to {FLAG_MAX}"
        )
    return int(flag)


def _joined(keys: Iterable[str]) -> str:
    try:
        return names.KEY_SEPARATOR.join(keys)
    except TypeError:
        raise MessageError(
            f"keys={keys!r:.80} are not keys: expected one str, or several as in keys=['a', 'b']"
        ) from None


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ReceivedMessage:
    """A message as the broker stored it.

    - ``queue_offset`` counts the messages of its queue.
    - ``commit_log_offset`` counts bytes of the log.
    - Times are in ms since 1970 UTC.
    - Hosts are pairs of IP address and port.
    - Properties and a compressed body are decoded on first access. In a pulled message
      (``unread_messages``), so are most other fields.
    """

    topic: str
    stored_body: bytes
    properties_text: str
    """Property text as stored, including the CRC of the stored bytes."""
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: tuple[str, int]
    store_timestamp: int
    store_host: tuple[str, int]
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    store_size: int
    broker_name: str = ""
    _entry: bytes | None = field(default=None, init=False)
    """Stored bytes of a message whose fields are decoded on first access; None for other
    messages."""
    _properties: dict[str, str] | None = field(default=None, init=False)
    _body: bytes | None = field(default=None, init=False)

    if not TYPE_CHECKING:  # mypy still reports unknown names

        def __getattr__(self, name: str) -> Any:
            """Decode a field of a pulled message on first access.

            Python calls this method while the slot of the field is still empty.
            """
            if name == "stored_body":
                value = self.stored_body = body_of(self._entry)
            elif name == "properties_text":
                value = self.properties_text = properties_text_of(self._entry)
            elif name == "broker_name":
                value = self.broker_name = ""
            elif name in HEAD_FIELDS and self._entry is not None:
                value = head_field_of(self._entry, name)
                setattr(self, name, value)
            else:
                raise AttributeError(
                    f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
                )
            return value

    def __repr__(self) -> str:
        return (
            f"ReceivedMessage(topic={self.topic!r}, queue_id={self.queue_id}, "
            f"queue_offset={self.queue_offset}, "
            f"msg_id={self.msg_id!r}, body={len(self.stored_body)} B)"
        )

    @property
    def body(self) -> bytes:
        """Body as it was sent, decompressed.

        Raise StoredMessageError if decompression fails. The stored bytes are in ``stored_body``.
        """
        if self._body is None:
            stored = self.stored_body if self._entry is None else body_of(self._entry)
            if self.sys_flag & SysFlag.COMPRESSED:
                try:
                    stored = decompress(stored, self.sys_flag)
                except StoredMessageError as error:
                    on = f" on {self.broker_name}" if self.broker_name else ""
                    raise StoredMessageError(
                        f"offset {self.queue_offset} of {self.topic} queue {self.queue_id}{on}: "
                        f"{error}"
                    ) from None
            self._body = stored
        return self._body

    @property
    def properties(self) -> dict[str, str]:
        """All properties of the message, including RocketMQ's own.

        ``turbopump.message.properties`` has the names. ``__CRC32#`` is left out, because that
        property is a checksum of the stored bytes.
        """
        if self._properties is None:
            text = self.properties_text if self._entry is None else properties_text_of(self._entry)
            self._properties = decode_properties(text)
            self._properties.pop(names.CRC32, None)
        return self._properties

    @property
    def tags(self) -> str | None:
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(names.KEYS, "").split()

    @property
    def user_properties(self) -> dict[str, str]:
        """Properties that the sender added, without RocketMQ's own such as tags and keys."""
        return user_properties(self.properties)

    @property
    def msg_id(self) -> str:
        """Unique id from the producer, or the offset message id if the message has no unique id."""
        return self.properties.get(names.UNIQ_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """Id in hexadecimal, made from the position of the stored message.

        It contains the broker's address and the commit-log offset.
        """
        return offset_msg_id(self.store_host[0], self.store_host[1], self.commit_log_offset)


# Name of one queue: topic, broker and queue number. The value is frozen and ordered, and is the key
# of every table by queue. Apache's peers also write it as a JSON *key* (`{{"brokerName":…}:5}`).
class MessageQueue(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """One queue of one topic on one broker.

    Queues sort by topic, then broker name, then queue id, as Apache's do. All consumers of a group
    then compute the same allocation from the same list.
    """

    topic: str = ""
    broker_name: str = ""
    queue_id: Int32 = 0

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"
