"""What arbitrary bytes are given to: each reader of what peers send, its one error, and a good
input to begin with.

One rule: a target takes any bytes, and raises nothing. `make test` gives each a fixed number of
examples (tests/unit/test_fuzz_targets.py), `make fuzz` millions, guided by coverage
(tests/fuzz_atheris.py).
"""

from __future__ import annotations

import functools
import ssl
import tempfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.loops import outcome_of
from tests.unit.remoting.certificates import Pair
from tests.unit.remoting.serving import frame

from turbopump.errors import HeaderError, ProtocolError
from turbopump.message.batch import decode_batch, encode_batch
from turbopump.message.message import Message
from turbopump.message.properties import decode_properties, property_value
from turbopump.protocol import fastjson
from turbopump.protocol.command import decode_command
from turbopump.protocol.fastjson_read import FastjsonError
from turbopump.protocol.frame import JSON, ROCKETMQ, Frame, FrameReader
from turbopump.protocol.requests.clients import HeartbeatData
from turbopump.protocol.requests.namesrv import RegisterBrokerBody
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.remoting.tls import ServerContext


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


def first_bytes_of_tls(data: bytes) -> None:
    """What a server's side of a handshake makes of them."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    side = _context().at(0).wrap_bio(incoming, outgoing, server_side=True)
    incoming.write(b"\x16" + data[:HELLO_SIZE_MAX])
    with suppress(ssl.SSLError):  # or it wants more
        side.do_handshake()


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


TARGETS: Final[Mapping[str, Target]] = {
    "frame": Target(frames, frame(SEND, 7, b"body") + frame(SEND, 8)),
    "json-header": Target(functools.partial(header, form=JSON), _header(JSON)),
    "binary-header": Target(functools.partial(header, form=ROCKETMQ), _header(ROCKETMQ)),
    "fastjson": Target(any_json, b'{0:"a",{"brokerName":"b","queueId":1,"topic":"t"}:[1,2.5e3]}'),
    "heartbeat": Target(heartbeat, HEARTBEAT),
    "batch": Target(batch, encode_batch([Message("t", b"x", tags="a")] * 3)),
    "properties": Target(properties, b"TAGS\x01a\x02KEYS\x01k \xc3\xa9\x02"),
    "register-body": Target(registration, RegisterBrokerBody().encode_compressed()),
    "tls": Target(first_bytes_of_tls, _hello()),
}
