"""Input that is built to exhaust a server: it is closed or refused within a second of processor
time, and memory is taken for bytes that have come, not for those that are claimed. To a name server
and to a broker, for strangers as for everybody where there is no access control."""

import asyncio
import functools
import json
import time
import tracemalloc
import zlib
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.remoting.serving import frame, raw_peer
from tests.waits import until

from turbopump.protocol.frame import JSON, ROCKETMQ, frame_head
from turbopump.protocol.request import Request
from turbopump.protocol.requests.clients import Heartbeat
from turbopump.protocol.requests.namesrv import RegisterBroker
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.testing.broker_in_loop import RunningBroker, running_broker

SECONDS_MAX = 1.0
MIB = 1 << 20
INFLATED_SIZE = 128 * MIB
ON: dict[str, Any] = {
    "authentication_enabled": True,
    "init_authentication_user": '{"username": "admin", "password": "s"}',
    "inner_client_authentication_credentials": '{"accessKey": "inner", "secretKey": "i"}',
}


def lengths(total: int, mark: int) -> bytes:
    return (total & 0xFFFFFFFF).to_bytes(4) + (mark & 0xFFFFFFFF).to_bytes(4)


def header(text: bytes, form: int = JSON) -> bytes:
    return frame_head(len(text), 0, form) + text


@functools.cache
def bomb() -> bytes:
    stream = zlib.compressobj(1)
    pieces = [stream.compress(bytes(MIB)) for _ in range(INFLATED_SIZE // MIB)]
    return b"".join([*pieces, stream.flush()])


def request(asked: Request[Any], body: bytes) -> bytes:
    return frame(asked, 7, body)


def ext_fields(count: int) -> bytes:
    pairs = b",".join(b'"k%d":""' % number for number in range(count))
    return header(b'{"code":105,"opaque":7,"extFields":{%b}}' % pairs)


def binary_ext_fields(count: int) -> bytes:
    pairs = b"".join(b"\x00\x06%06d\x00\x00\x00\x01x" % number for number in range(count))
    head = (105).to_bytes(2) + b"\x00\x01\xdf" + bytes(4) + bytes(4) + bytes(4)
    return header(head + len(pairs).to_bytes(4) + pairs, ROCKETMQ)


REGISTER = RegisterBroker(
    broker_name="b",
    broker_addr="127.0.0.1:1",
    cluster_name="c",
    ha_server_addr="127.0.0.1:2",
    broker_id=0,
    compressed=True,
)
DEEP, DIGITS, FIELDS = 100_000, 5_000_000, 100_000
HOSTILE: dict[str, Callable[[], bytes]] = {
    "a negative length": partial(lengths, -1, 2),
    "the least length": partial(lengths, -(2**31), 2),
    "a huge length": partial(lengths, 2**31 - 1, 2),
    "a byte more than may be": partial(lengths, 16_777_213, 2),
    "a negative header length": partial(lengths, 100, 0x00FFFFFF),
    "a header longer than its frame": lambda: lengths(8, 5) + b"abcde",
    "no room for the header's length": partial(lengths, 3, 0),
    "first bytes of TLS": lambda: bytes.fromhex("1603010200010001fc0303") + bytes(600),
    "a header 100,000 levels deep": partial(
        header, b'{"code":105,"opaque":7,"extFields":{"a":' + b"[" * DEEP + b"]" * DEEP + b"}}"
    ),
    "a header's number of 5 M digits": partial(
        header, b'{"code":105,"opaque":' + b"9" * DIGITS + b"}"
    ),
    "100,000 header fields": partial(ext_fields, FIELDS),
    "100,000 header fields in the binary form": partial(binary_ext_fields, FIELDS),
    "a body 100,000 levels deep": partial(request, Heartbeat(), b'{"clientID":' + b"[" * DEEP),
    "a body's number of 5 M digits": partial(
        request, Heartbeat(), b'{"clientID":"c","heartbeatFingerprint":' + b"9" * DIGITS + b"}"
    ),
    "a body of 100,000 fields": lambda: request(
        Heartbeat(), json.dumps({f"k{number}": number for number in range(FIELDS)}).encode()
    ),
    "a registration that inflates to 128 MiB": lambda: request(REGISTER, bomb()),
    "a message that inflates to 128 MiB": lambda: request(
        SendMessageV2(topic="orders", queue_id=0, sys_flag=1), bomb()
    ),
}

FRAMES_AND_HEADERS = {name for name in HOSTILE if "body" not in name and "inflates" not in name}


async def run_with_servers(
    authentication: bool, story: Callable[[RunningBroker], Coroutine[Any, Any, None]]
) -> None:
    async with running_broker(**(ON if authentication else {})) as servers:
        await story(servers)


def with_servers(
    story: Callable[[RunningBroker], Coroutine[Any, Any, None]], authentication: bool
) -> None:
    asyncio.run(run_with_servers(authentication, story))


@pytest.mark.parametrize("authentication", [False, True], ids=["open", "closed"])
@in_loop(with_servers)
async def test_it_is_closed_or_refused_in_a_second(servers: RunningBroker, /) -> None:
    ends: dict[str, list[str]] = {}
    for name, make in HOSTILE.items():
        data = make()
        for address in (servers.namesrv, servers.broker_address):
            host, port = address.split(":")
            async with raw_peer(host, int(port)) as peer:
                begun = time.process_time()
                peer.write(data)
                answer = await peer.read()
                took = time.process_time() - begun
            assert took < SECONDS_MAX, f"{name} to {address}: {took:.2f} s"
            ends.setdefault(name, []).append("closed" if answer is None else str(answer.code))
    assert {
        name for name, both in ends.items() if both == ["closed", "closed"]
    } >= FRAMES_AND_HEADERS


@pytest.mark.parametrize("authentication", [False, True], ids=["open", "closed"])
@in_loop(with_servers)
async def test_memory_is_not_taken_for_what_is_only_claimed(servers: RunningBroker, /) -> None:
    host, port = servers.broker_address.split(":")
    memory = servers.broker.parts.listening.server.memory
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(raw_peer(host, int(port))) for _ in range(50)]
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for peer in peers:
            peer.write(lengths(16_777_212, 0xFFFFF0), b"{")
        await until(lambda: memory.total >= 50 * 9)
        _, peak = tracemalloc.get_traced_memory()
    assert peak < 4 * MIB, "50 frames of 16 MiB were announced"
