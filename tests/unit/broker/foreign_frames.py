"""Frames as clients in C++ and PHP write them: their header may hold bytes that are no UTF-8."""

from __future__ import annotations

import asyncio
import struct

from turbopump.protocol.command import Command, decode_command
from turbopump.protocol.frame import JSON, ROCKETMQ, FrameReader, frame_head

GBK = "订单".encode("gbk")
PROPERTIES = b"UNIQ_KEY\x01id-1\x02KEYS\x01%b a\x02TAGS\x01%b\x02who\x01%b" % (GBK, GBK, GBK)
SEND_V2, SEND_BATCH = 310, 320


def json_frame(code: int, opaque: int, fields: dict[bytes, bytes], body: bytes) -> bytes:
    ext = b",".join(b'"%b":"%b"' % (name, _escaped(value)) for name, value in fields.items())
    header = b'{"code":%d,"opaque":%d,"version":1,"extFields":{%b}}' % (code, opaque, ext)
    return frame_head(len(header), len(body), JSON) + header + body


def _escaped(value: bytes) -> bytes:
    value = value.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    return b"".join(b"\\u%04x" % one if one < 32 else bytes((one,)) for one in value)


def binary_frame(code: int, opaque: int, fields: dict[bytes, bytes], body: bytes) -> bytes:
    ext = b"".join(
        struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value
        for name, value in fields.items()
    )
    fixed = struct.pack(">hBhiii", code, 1, 1, opaque, 0, 0)
    header = fixed + struct.pack(">i", len(ext)) + ext
    return frame_head(len(header), len(body), ROCKETMQ) + header + body


def send_fields(properties: bytes, topic: bytes = b"T", **more: bytes) -> dict[bytes, bytes]:
    """Those of a send (310); ``i`` is its property text."""
    usual = {b"a": b"g", b"b": topic, b"c": b"TBW102", b"d": b"4", b"e": b"0", b"f": b"0"}
    usual |= {b"g": b"1", b"h": b"0", b"i": properties, b"j": b"0", b"k": b"false", b"m": b"false"}
    return usual | {name.encode(): value for name, value in more.items()}


async def answers(address: str, *frames: bytes) -> dict[int, Command]:
    """Send all at once over one connection; the answers by their numbers."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"".join(frames))
    found: dict[int, Command] = {}
    frames_in = FrameReader()
    while len(found) < len(frames):
        data = await asyncio.wait_for(reader.read(65536), 30)
        assert data, "the broker closed the connection"
        for frame in frames_in.feed(data):
            answer = decode_command(frame)
            found[answer.opaque] = answer
    writer.close()
    return found
