"""What arbitrary bytes are given to: each reader of what peers send, its one error, and a good
input to begin with.

One rule: a target takes any bytes, and raises nothing. `make test` gives each a fixed number of
examples (tests/unit/test_fuzz_targets.py), `make fuzz` millions, guided by coverage
(tests/fuzz_atheris.py).
"""

from __future__ import annotations

import asyncio
import functools
import ssl
import tempfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.loops import outcome_of
from tests.unit.auth.signed import ANN, USERS, Door, access, allow, signed
from tests.unit.client.scripted_answers import entry, reply
from tests.unit.protocol.compressed_registration import encode_compressed
from tests.unit.remoting.certificates import Pair
from tests.unit.remoting.serving import frame

from turbopump.auth.policies import Action
from turbopump.auth.signatures import Credentials, signed_content
from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.pop import PoppedDelivery, popped_messages
from turbopump.client.consumer.pull import pulled_messages
from turbopump.client.topic_route import topic_route
from turbopump.errors import BodyError, HeaderError, MessageError, ProtocolError
from turbopump.message.batch import decode_batch, encode_batch
from turbopump.message.message import Message, MessageQueue
from turbopump.message.properties import SysFlag, decode_properties, property_value
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import decode_command, encode_command
from turbopump.protocol.fastjson_read import FastjsonError
from turbopump.protocol.frame import JSON, ROCKETMQ, Frame, FrameReader, frame_head
from turbopump.protocol.requests.clients import HeartbeatData
from turbopump.protocol.requests.namesrv import (
    ROUTE_QUEUES_MAX,
    BrokerData,
    QueueData,
    RegisterBrokerBody,
    TopicRouteData,
)
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.remoting.tls import ServerContext
from turbopump.replication.handshake import (
    HELLO,
    NONCE_SIZE,
    PROOF_SIZE,
    MasterHandshake,
    PeerRules,
    SlaveHandshake,
)
from turbopump.replication.stream import REPORT, TRANSFER_HEAD, ReportReader, TransferReader


@dataclass(frozen=True, slots=True)
class Target:
    """``take`` reads bytes; ``good``: some that it understands."""

    take: Callable[[bytes], None]
    good: bytes


SEND = SendMessageV2(topic="orders", queue_id=1, properties="TAGS\x01a\x02KEYS\x01k\x02")
HEARTBEAT = (
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"CLUSTERING",'
    b'"subscriptionDataSet":[{"topic":"t","subString":"*","tagsSet":[]}]}],"producerDataSet":[]}'
)
SIGNED_BODY: Final = b"body"
BROKERS: Final = Credentials("broker", "secret")
SLAVES_NONCE, MASTERS_NONCE = b"\1" * NONCE_SIZE, b"\2" * NONCE_SIZE
HELLO_SIZE_MAX: Final = 16_384


def frames(data: bytes) -> None:
    """The same, whole and in two pieces."""
    whole, cut = FrameReader(), FrameReader()
    half = len(data) // 2
    found = whole.feed(data)
    again = cut.feed(data[:half]) + cut.feed(data[half:])
    assert found == again
    assert (whole.error is None) == (cut.error is None)
    # at most as many pieces as came, whatever lengths they claim
    assert whole.held <= len(data) + 256


def header(data: bytes, form: int) -> None:
    with suppress(HeaderError):
        assert isinstance(decode_command(Frame(form, data, b"")).code, int)


def any_json(data: bytes) -> None:
    with suppress(FastjsonError):
        fastjson.parse(data)


def heartbeat(data: bytes) -> None:
    with suppress(ProtocolError):
        fastjson.decode_request(data, HeartbeatData)


def batch(data: bytes) -> None:
    with suppress(ProtocolError):
        items = decode_batch(data)
        assert sum(22 + len(item.body) + len(item.properties) for item in items) <= len(data)


def properties(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    found = decode_properties(text)
    assert all(property_value(text, name) == value for name, value in found.items())


def registration(data: bytes) -> None:
    """The compressed form, of bytes that are a stream and of those that become one."""
    for stream in (data, zlib.compress(data, 1)):
        with suppress(ProtocolError):
            outcome_of(RegisterBrokerBody.decode_compressed(stream, with_mappings=True))


def route(data: bytes) -> None:
    """The body of a name server's answer."""
    with suppress(BodyError):
        taken = topic_route("T", fastjson.decode(data, TopicRouteData))
        assert max(len(taken.publish_queues), len(taken.subscribe_queues)) <= ROUTE_QUEUES_MAX


def pulled(data: bytes) -> None:
    """The body of an answer to a pull, and to a pop."""
    queue = MessageQueue("T", "b", 0)
    found, damaged = pulled_messages(data, queue, 0, 2**62, Delivery)
    assert len(found) + len(damaged) <= len(data)
    with suppress(MessageError):
        popped_messages(data, reply(), queue, PoppedDelivery)


def pop_texts(data: bytes) -> None:
    """What the header of an answer to a pop says of its messages."""
    text = data.decode("utf-8", "replace")
    with suppress(MessageError):
        popped_messages(STORED, reply(text, text, text), MessageQueue("T", "b", 0), PoppedDelivery)


def first_bytes_of_tls(data: bytes) -> None:
    """What a server's side of a handshake makes of them."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    side = _context().context_at(0).wrap_bio(incoming, outgoing, server_side=True)
    incoming.write(b"\x16" + data[:HELLO_SIZE_MAX])
    with suppress(ssl.SSLError):  # or it wants more
        side.do_handshake()


def signed_header(data: bytes) -> None:
    """The header of a request to a server with access control. What is handled has the fields that
    were signed, whoever reads them; all else is refused in the words for strangers and users."""
    _loop().run_until_complete(_signed_header(data))


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


async def _signed_header(header: bytes) -> None:
    door = Door(access(allow("Topic:*", Action.PUB)), [SendMessageV2])
    answers = door.take(frame_head(len(header), len(SIGNED_BODY)) + header + SIGNED_BODY)
    door.connection.connection_lost(None)
    for context in door.contexts:
        try:
            fields = context.command.ext or {}
        except HeaderError:  # outside of the fields there are bytes that nobody has read
            continue
        content = signed_content(fields, SIGNED_BODY, context.command.version)
        assert USERS[ANN].key.has_signed(content, fields["Signature"])
    for answer in answers:
        assert answer.code in (0, ResponseCode.NO_PERMISSION) or door.connection.user is not None
        assert "internal error" not in (answer.remark or "")


def ha_slave(data: bytes) -> None:
    """What a slave says to a master that asks for a proof: the handshake, then its reports."""
    _in_pieces(data, partial(MasterHandshake, _RULES, "10.0.0.2", MASTERS_NONCE), ReportReader)


def ha_master(data: bytes) -> None:
    """What a master says to a slave that asks for a proof: the handshake, then the log."""
    _in_pieces(data, partial(SlaveHandshake, BROKERS, SLAVES_NONCE), partial(TransferReader, None))


_RULES: Final = PeerRules(closed=True, credentials=BROKERS)


def _in_pieces(
    data: bytes,
    handshake: Callable[[], MasterHandshake | SlaveHandshake],
    stream: Callable[[], ReportReader | TransferReader],
) -> None:
    """The same comes of a conversation, whole and in two pieces, and nothing without a proof."""
    whole, cut = [
        _said(pieces, handshake(), stream())
        for pieces in ((data,), (data[: len(data) // 2], data[len(data) // 2 :]))
    ]
    assert whole == cut
    if whole[1] is not None:
        assert data.startswith(HELLO)
        assert len(data) >= len(HELLO) + NONCE_SIZE + PROOF_SIZE


def _said(
    pieces: tuple[bytes, ...],
    handshake: MasterHandshake | SlaveHandshake,
    stream: ReportReader | TransferReader,
) -> tuple[bytes, list[int] | bytes | None, bool]:
    """What is said to a peer, what its stream holds (None: the handshake is not over), and whether
    it is listened to."""
    said = b""
    held: list[int] | bytes | None = None
    try:
        for piece in pieces:
            rest: bytes | None = piece
            if held is None:
                step = handshake.received(piece)
                said, rest = said + step.said, step.rest
            if rest is not None:
                more = stream.feed(rest)
                held = more if held is None else held + more  # type: ignore[operator]
    except ProtocolError:
        return b"", None, False
    return said, held, True


def _conversation() -> tuple[bytes, bytes]:
    """All that a slave and a master of one cluster say, with the begin of the stream."""
    slave, master = (
        SlaveHandshake(BROKERS, SLAVES_NONCE),
        MasterHandshake(_RULES, "", MASTERS_NONCE),
    )
    hello = slave.begin()
    greeting = master.received(hello).said
    proof = slave.received(greeting).said
    answer = master.received(proof).said
    return (
        hello + proof + REPORT.pack(0) + REPORT.pack(7),
        greeting + answer + TRANSFER_HEAD.pack(0, 3) + b"log" + TRANSFER_HEAD.pack(3, 0),
    )


@functools.cache
def _context() -> ServerContext:
    with tempfile.TemporaryDirectory() as directory:
        return ServerContext(Pair(Path(directory)).server())


def _hello() -> bytes:
    """How a client of ours begins, but for the first byte."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(
        incoming, outgoing, server_hostname="localhost"
    )
    with suppress(ssl.SSLWantReadError):
        side.do_handshake()
    return outgoing.read()[1:]


def _header(form: int) -> bytes:
    (read,) = FrameReader().feed(frame(SEND, 7, serialize_type=form))
    return read.header


def _signed() -> bytes:
    (read,) = FrameReader().feed(encode_command(signed(SEND, SIGNED_BODY)))
    return read.header


STORED: Final = entry(5, b"body")
BATCH: Final = entry(
    5,
    zlib.compress(encode_batch([Message("t", b"x")] * 3)),
    int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP | SysFlag.COMPRESSED),
)
GOOD_ROUTE: Final = fastjson.encode(
    TopicRouteData(
        order_topic_conf="b:4;c:4",
        queue_datas=[QueueData(broker_name="b", read_queue_nums=4, write_queue_nums=4, perm=7)],
        broker_datas=[BrokerData(cluster="c", broker_name="b", broker_addrs={0: "h:1", 1: "h:2"})],
    )
)
FROM_SLAVE, FROM_MASTER = _conversation()
TARGETS: Final[Mapping[str, Target]] = {
    "frame": Target(frames, frame(SEND, 7, b"body") + frame(SEND, 8)),
    "json-header": Target(functools.partial(header, form=JSON), _header(JSON)),
    "binary-header": Target(functools.partial(header, form=ROCKETMQ), _header(ROCKETMQ)),
    "fastjson": Target(any_json, b'{0:"a",{"brokerName":"b","queueId":1,"topic":"t"}:[1,2.5e3]}'),
    "heartbeat": Target(heartbeat, HEARTBEAT),
    "batch": Target(batch, encode_batch([Message("t", b"x", tags="a")] * 3)),
    "properties": Target(properties, b"TAGS\x01a\x02KEYS\x01k \xc3\xa9\x02"),
    "register-body": Target(registration, encode_compressed(RegisterBrokerBody())),
    "route": Target(route, GOOD_ROUTE),
    "pulled": Target(pulled, STORED + BATCH),
    "pop-texts": Target(pop_texts, b"0 0 5,6,7;1 0 8"),
    "tls": Target(first_bytes_of_tls, _hello()),
    "signed-header": Target(signed_header, _signed()),
    "ha-slave": Target(ha_slave, FROM_SLAVE),
    "ha-master": Target(ha_master, FROM_MASTER),
}
