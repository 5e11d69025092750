"""Preparation of a message for sending: it is checked, gets a unique id, and becomes a frame.

Its namespace is added, and its body may be compressed. Values in, values out.

One rule: a message that a broker would refuse for its form is refused here, with a clear error,
before a byte is sent. The user's ``Message`` is not changed, so it can be sent again. Source:
apache/rocketmq ``Validators.checkMessage``, ``MessageBatch``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypedDict

import msgspec

from turbopump.auth.signatures import RequestSigner
from turbopump.client.namespace import INSTANCE_ID, wrap
from turbopump.client.setting_rules import is_collection
from turbopump.client.topic_route import DEFAULT_TOPIC_QUEUES
from turbopump.errors import MessageError
from turbopump.event_loop import PureThreads
from turbopump.message.batch import decode_batch, encode_item, identified_item
from turbopump.message.compression import compress
from turbopump.message.ids import UniqueIds
from turbopump.message.message import (
    BODY_SIZE_MAX,
    Message,
    MessageQueue,
    bytes_of_body,
    checked_flag,
)
from turbopump.message.properties import (
    DELAY_TIME_LEVEL,
    LZ4,
    NAME_END,
    PAIR_END,
    PROPERTIES_SIZE_MAX,
    UNIQ_KEY,
    WAIT_STORE_MSG_OK,
    ZLIB,
    ZSTD,
    encode_properties,
)
from turbopump.message.rules import (
    DEFAULT_TOPIC,
    NOT_SENDABLE_TOPICS,
    RETRY_PREFIX,
    is_unicode,
    topic_fault,
)
from turbopump.message.user_properties import blank
from turbopump.protocol.codes import CURRENT_VERSION, FLAG_ONEWAY, RequestCode
from turbopump.protocol.command import decode_command, encode_command
from turbopump.protocol.frame import JSON, Frame

COMPRESS_FROM: Final = 4096
"""Body size in bytes from which bodies are compressed (``compressMsgBodyOverHowmuch``)."""
COMPRESSING_MAX: Final = 4
"""Maximum number of compression threads of one producer."""
LARGE_BODY_SIZE: Final = 64 * 1024
"""Body size in bytes from which a thread compresses. 4 MiB take 0.2 s, which would block the event
loop."""
DELAYING: Final = (
    DELAY_TIME_LEVEL,
    "TIMER_DELIVER_MS",
    "TIMER_DELAY_SEC",
    "TIMER_DELAY_MS",
    "__STARTDELIVERTIME",
)

COMPRESSION_KINDS: Final = {
    "zlib": (ZLIB, 0, 9, 5),
    "lz4": (LZ4, 0, 16, 0),
    "zstd": (ZSTD, 1, 22, 5),
}
"""Kinds of compression by name. The values are the type in ``sysFlag``, and the lowest, highest and
default level."""


class Compression(NamedTuple):
    """Rule for compressing bodies.

    - ``above``: size in bytes from which bodies are compressed. None compresses no body.
    - ``kind``: name of the kind, such as ``zlib``.
    - ``level``: level of compression. None for the default of the kind.
    """

    above: int | None = COMPRESS_FROM
    kind: str = "zlib"
    level: int | None = None


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """Message ready to be sent: the contents of its frame, and its id."""

    topic: str
    body: bytes
    properties: str
    sys_flag: int
    flag: int
    msg_id: str
    batch_ids: tuple[str, ...] = ()
    """Ids of a batch's messages, which ``msg_id`` joins into one text. Empty for a single
    message."""


class BatchPart(msgspec.Struct, frozen=True, gc=False):
    """Message that is encoded as a part of a batch."""

    topic: str
    entry: bytes
    msg_id: str


class Packer:
    """Converter of users' messages to ``Outgoing`` values.

    ``namespace`` is added to every topic.
    """

    def __init__(
        self,
        ids: UniqueIds,
        *,
        body_size_max: int = BODY_SIZE_MAX,
        compression: Compression | None = None,
        namespace: str | None = None,
    ) -> None:
        compression = compression or Compression()
        self._ids = ids
        self._body_size_max = body_size_max
        self._compress_from = body_size_max + 1 if compression.above is None else compression.above
        self._compression_type, _, _, level = COMPRESSION_KINDS[compression.kind]
        self._compression_level = level if compression.level is None else compression.level
        self._namespace = namespace
        self._suffix = f"{INSTANCE_ID}\x01{namespace}\x02" if namespace else ""
        self._suffix_bytes = self._suffix.encode()
        self._threads = PureThreads(COMPRESSING_MAX, "turbopump-compressing")
        self._topics: dict[str, str] = {}
        """Checked topics, each with the name that brokers know."""

    def pack(self, message: Message) -> Outgoing:
        """Check and encode a message, and return it ready to be sent.

        A large body is not compressed yet; ``compressed`` does that. Raises MessageError if the
        message must not be sent, and TypeError if the argument is no message.
        """
        try:
            body = message.body
            flag = message.flag
            topic = self._topics.get(message.topic) or self._checked_topic(message.topic)
            # it may have been changed since its creation
            if body.__class__ is not bytes or flag != 0:
                body = bytes_of_body(body)
                flag = checked_flag(flag)
            if not 0 < len(body) <= self._body_size_max:
                raise self._size_error(len(body))
            properties = message.properties
            if properties:
                text, msg_id = self._with_id(properties)
                _checked(text)
            else:
                msg_id = self._ids.next()
                text = f"UNIQ_KEY\x01{msg_id}\x02{self._suffix}"
        except (AttributeError, TypeError):
            refuse_changed_message(message)
            raise
        sys_flag = 0
        if self._compress_from <= len(body) < LARGE_BODY_SIZE:
            body, sys_flag = self._compressed(body)
        return Outgoing(topic, body, text, sys_flag, flag, msg_id)

    async def compressed(self, outgoing: Outgoing) -> Outgoing:
        """Return the message with a large body compressed in a thread.

        The message is returned unchanged if ``pack`` has compressed the body already, or if it
        needs no compression.
        """
        small = len(outgoing.body) < max(LARGE_BODY_SIZE, self._compress_from)
        if small or outgoing.sys_flag or outgoing.batch_ids:
            return outgoing
        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(self._threads, self._compressed, outgoing.body)
        body, sys_flag = await done
        return msgspec.structs.replace(outgoing, body=body, sys_flag=sys_flag)

    def piece(self, message: Message) -> BatchPart:
        """Check and encode a message as a part of a batch.

        Raises the errors of ``pack``.
        """
        try:
            topic = self._topics.get(message.topic) or self._checked_topic(message.topic)
            body = message.body
            flag = message.flag
            # it may have been changed since its creation
            if body.__class__ is not bytes or flag != 0:
                body = bytes_of_body(body)
                flag = checked_flag(flag)
            if not 0 < len(body) <= self._body_size_max:
                raise self._size_error(len(body))
            if message.properties:
                text, msg_id = self._with_id(message.properties)
                entry = encode_item(flag, body, _checked(text))
            else:
                msg_id = self._ids.next()
                entry = identified_item(flag, body, msg_id, self._suffix_bytes)
        except (AttributeError, TypeError):
            refuse_changed_message(message)
            raise
        return BatchPart(topic, entry, msg_id)

    def pack_single(self, piece: BatchPart) -> Outgoing:
        """Convert a batch part to a message for a separate send."""
        item = decode_batch(piece.entry)[0]
        body = item.body
        sys_flag = 0
        if self._compress_from <= len(body) < LARGE_BODY_SIZE:
            body, sys_flag = self._compressed(body)
        text = item.properties.decode()
        return Outgoing(piece.topic, body, text, sys_flag, item.flag, piece.msg_id)

    def _compressed(self, body: bytes) -> tuple[bytes, int]:
        compressed, flags = compress(body, self._compression_type, self._compression_level)
        if len(compressed) >= len(body):
            return body, 0  # a body of 4 MiB that does not shrink would be too large for the broker
        return compressed, flags

    def _with_id(self, properties: Mapping[str, str]) -> tuple[str, str]:
        msg_id = properties.get(UNIQ_KEY)
        text = encode_properties(properties) + self._suffix
        # added since the message was created
        if "\x01\x02" in text or "\x02\x01" in text or text[0] == NAME_END:
            pairs = properties.items()
            raise next(blank(name, value) for name, value in pairs if not name or not value)
        if msg_id is not None:
            return text, msg_id
        msg_id = self._ids.next()
        return f"{text}UNIQ_KEY\x01{msg_id}\x02", msg_id

    def pack_batch(self, messages: Sequence[Message]) -> Outgoing:
        """Combine messages into a batch for one request.

        Raises MessageError if the messages cannot be one batch, because a batch is not split.
        """
        if is_collection(messages) and not messages:
            raise MessageError("an empty batch was given; send_batch needs at least one message")
        listed = isinstance(messages, Sequence)
        if not listed or not all(isinstance(message, Message) for message in messages):
            raise TypeError(f"a batch is a list of Message objects, not {messages!r:.80}")
        pieces = [self.piece(message) for message in messages]
        first = messages[0]
        if first.topic.startswith(RETRY_PREFIX):
            raise MessageError(
                f"a batch cannot go to the retry topic {first.topic}; send its messages one by one"
            )
        for message in messages:
            _check_fits(message, first)
        return self.pack_pieces(pieces, wait_store_ok=first.wait_store_ok)

    def pack_pieces(self, pieces: Sequence[BatchPart], *, wait_store_ok: bool) -> Outgoing:
        """Combine encoded messages of one topic into a batch for one request.

        Raises MessageError if the messages are too large together.
        """
        body = b"".join([piece.entry for piece in pieces])
        if len(body) > self._body_size_max:
            raise MessageError(
                f"a batch of {len(pieces)} messages takes {len(body)} bytes; at most "
                f"{self._body_size_max} are allowed: split it"
            )
        ids = tuple([piece.msg_id for piece in pieces])
        # RocketMQ 5: the batch has a UNIQ_KEY too. Brokers 4.8 to 5.3.3 append it to each message's
        # own and override that: all messages of the batch then have one id, unknown to users.
        wait = "" if wait_store_ok else f"{WAIT_STORE_MSG_OK}\x01false\x02"
        return Outgoing(pieces[0].topic, body, f"{wait}{self._suffix}", 0, 0, ",".join(ids), ids)

    def _checked_topic(self, topic: str) -> str:
        fault = topic_fault(topic)
        if fault is None and self._namespace:
            fault = topic_fault(wrap(self._namespace, topic))
        if fault is not None:
            raise MessageError(fault)
        if topic in NOT_SENDABLE_TOPICS:
            raise MessageError(
                f"the topic {topic} belongs to the broker itself; choose another one"
            )
        wrapped = self._topics[topic] = wrap(self._namespace, topic)
        return wrapped

    def _size_error(self, size: int) -> MessageError:
        if not size:
            return MessageError(
                "the body is empty, and brokers refuse that; put at least one byte into it"
            )
        return MessageError(f"the body has {size} bytes; at most {self._body_size_max} are allowed")


def _checked(text: str) -> bytes:
    """Encode the text of a message's properties as bytes.

    Raises MessageError if the text is not valid Unicode or too long.
    """
    try:
        data = text.encode()
    except UnicodeEncodeError:
        broken = next(pair for pair in text.split(PAIR_END) if not is_unicode(pair))
        name, _, value = broken.partition(NAME_END)
        raise MessageError(
            f"property {name!r:.80}={value!r:.80} contains a lone surrogate; expected valid Unicode"
        ) from None
    if len(data) > PROPERTIES_SIZE_MAX:
        raise MessageError(
            f"the properties take {len(data)} bytes; at most {PROPERTIES_SIZE_MAX} are allowed"
        )
    return data


def refuse_changed_message(message: object) -> None:
    """Raise the error that explains why a message could not be encoded.

    Raises TypeError if the argument is no message, and MessageError if its fields were changed
    after its creation.
    """
    if not isinstance(message, Message):
        raise TypeError(
            f"{message!r:.80} must be a Message, as in Message('orders', b'body')"
        ) from None
    Message.as_it_is(message.topic, message.body, message.properties, message.flag)


def _check_fits(message: Message, first: Message) -> None:
    if message.topic != first.topic:
        raise MessageError(f"a batch has one topic; this one has {first.topic} and {message.topic}")
    if message.wait_store_ok != first.wait_store_ok:
        raise MessageError("the messages of a batch must agree in wait_store_ok")
    if any(name in message.properties for name in DELAYING):
        raise MessageError("a delayed message cannot go in a batch; send it on its own")


class MessageParts(TypedDict, total=False):
    """Further arguments of ``Message``, besides topic and body."""

    tags: str | None
    keys: str | Iterable[str] | None
    properties: Mapping[str, str] | None
    flag: int
    wait_store_ok: bool
    delay_level: int
    deliver_at: int | datetime | None
    delay: float | timedelta | None


def as_message(message: Message | str, body: bytes | str | None, parts: MessageParts) -> Message:
    """Return a ``Message`` from the arguments of ``send``. They contain a whole message or its
    parts.

    Raises TypeError if the two forms are mixed.
    """
    if isinstance(message, Message):
        if body is not None or any(value is not None for value in parts.values()):
            raise TypeError(
                "a Message brings its own body, tags, keys, properties and delay; give either a "
                "Message or a topic with them"
            )
        return message
    if body is None:
        raise TypeError("a topic without a body was given; give a Message, or topic and body")
    return Message(message, body, **parts)


# The frame of a send is written from prepared parts: the generic writer costs several times as
# much. The bytes mean exactly what a signed ``SendMessageV2`` (``SendBatchMessage``,
# ``SendReplyMessageV2``) with the same values means; tests compare them.

_json: Final = msgspec.json.Encoder()
_TAIL: Final = (
    b',"language":"PYTHON","serializeTypeCurrentRPC":"JSON","version":%d}' % CURRENT_VERSION
)
_ONEWAY: Final = b"%d" % FLAG_ONEWAY


class _Head(NamedTuple):
    """Parts of a frame that are equal for every message to one queue.

    They are the start of the header, and the signed content before and after the values that
    change.
    """

    header: bytes
    signed_before: str
    signed_after: str


class SendFrames:
    """Encoder of a producer group's send frames.

    - ``code``: request code for a single message.
    - ``form``: header form, JSON or ROCKETMQ. ROCKETMQ takes twice as long.
    """

    def __init__(
        self,
        group: str,
        signer: RequestSigner | None = None,
        code: int = RequestCode.SEND_MESSAGE_V2,
        form: int = JSON,
        *,
        unit_mode: bool = False,
    ) -> None:
        self._unit_mode = "true" if unit_mode else "false"
        self._group = group
        self._form = form
        self._code = code
        self._signer = signer
        self._signs = signer is not None and signer.signs
        self._heads: dict[tuple[MessageQueue, bool], _Head] = {}

    def encode(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        opaque: int,
        born_timestamp: int,
        oneway: bool = False,
    ) -> bytes:
        """Encode the frame that sends one message to ``queue``.

        ``born_timestamp`` is in ms since 1970 UTC.
        """
        sys_flag = outgoing.sys_flag
        flag = outgoing.flag
        body = outgoing.body
        batch = bool(outgoing.batch_ids)
        head = self._heads.get((queue, batch))
        if head is None:
            head = self._heads[queue, batch] = self._head(queue, batch)
        signature = b""
        if self._signs:
            assert self._signer is not None
            values = f"{sys_flag}{born_timestamp}{flag}{outgoing.properties}"
            content = f"{head.signed_before}{values}{head.signed_after}".encode()
            signature = b',"Signature":"%b"' % self._signer.signature(content, body).encode()
        header = b'%b,"f":"%d","g":"%d","h":"%d","i":%b%b},"flag":%b,"opaque":%d%b' % (
            head.header,
            sys_flag,
            born_timestamp,
            flag,
            _json.encode(outgoing.properties),
            signature,
            _ONEWAY if oneway else b"0",
            opaque,
            _TAIL,
        )
        if self._form != JSON:
            command = decode_command(Frame(JSON, header, body))
            command.serialize_type = self._form
            return encode_command(command)
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
            "k": self._unit_mode,
            "m": "true" if batch else "false",
            "n": queue.broker_name,
        }
        if self._signer is not None:
            fields |= self._signer.fields
        names = sorted(fields)
        return _Head(
            b'{"code":%d,"extFields":%b' % (code, _json.encode(fields)[:-1]),
            "".join(fields[name] for name in names if name < "f"),
            "".join(fields[name] for name in names if name > "i"),
        )


class NotedFrames(SendFrames):
    """Encoder of send frames that also notes the broker of each frame.

    Each frame's broker name is added to the list in ``notes``, if the context has set one.
    """

    notes: Final[ContextVar[list[str] | None]] = ContextVar("brokers asked", default=None)

    def encode(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        opaque: int,
        born_timestamp: int,
        oneway: bool = False,
    ) -> bytes:
        notes = self.notes.get()
        if notes is not None:
            notes.append(queue.broker_name)
        return super().encode(outgoing, queue, opaque, born_timestamp, oneway)
