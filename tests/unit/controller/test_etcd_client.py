"""Calls to the members of an etcd: which member is asked, and what its bytes mean."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.loops import in_loop, on_a_client_s_host
from tests.simulation.world.simulation import Simulation

from turbopump.config.etcd import Etcd
from turbopump.controller.etcd_client import EtcdClient, EtcdRefusedError, EtcdUnreachableError

FIRST, SECOND = "10.0.9.1", "10.0.9.2"
ETCD = Etcd(((FIRST, 2379), (SECOND, 2379)))


def plain(value: Any, head: bytes = b"200 OK") -> bytes:
    body = msgspec.json.encode(value)
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (head, len(body), body)


class Member:
    """A member that gives each request the next of some answers, or the last one again."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, Any]] = []
        """Head and body of each request."""

    async def start(self, simulation: Simulation, host: str) -> None:
        await simulation.boot(host).start(asyncio.start_server(self._answer, host, 2379))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = int(head.partition("Content-Length: ")[2].split("\r\n")[0])
        self.requests.append((head, msgspec.json.decode(await reader.readexactly(size))))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        writer.write(answer)
        writer.close()


@in_loop(on_a_client_s_host)
async def test_a_call_is_one_post_of_json(world: Simulation, /) -> None:
    member = Member(plain({"count": "1"}))
    await member.start(world, FIRST)
    answer = await EtcdClient(ETCD, 1.0).call("kv/range", {"key": "YQ=="})

    assert answer == {"count": "1"}
    [(head, body)] = member.requests
    assert head.startswith(f"POST /v3/kv/range HTTP/1.1\r\nHost: {FIRST}:2379\r\n")
    assert body == {"key": "YQ=="}


@in_loop(on_a_client_s_host)
async def test_an_answer_in_chunks_is_put_together(world: Simulation, /) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    await Member(head + b'5;x=y\r\n{"a":\r\n2\r\n1}\r\n0\r\nTrailer: x\r\n\r\n').start(world, FIRST)

    assert await EtcdClient(ETCD, 1.0).call("kv/range", {}) == {"a": 1}


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n99\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"nonsense\r\n\r\n",
        b"x" * 200_000,
        plain(["a list"]),
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nNot Found",
        plain({"error": "etcdserver: request timed out", "code": 14}, b"503 Service Unavailable"),
    ],
)
@in_loop(on_a_client_s_host)
async def test_another_member_is_asked_and_stays_the_first(
    world: Simulation, /, answer: bytes
) -> None:
    bad, good = Member(answer), Member(plain({}))
    await bad.start(world, FIRST)
    await good.start(world, SECOND)
    client = EtcdClient(ETCD, 1.0)
    await client.call("kv/range", {})
    await client.call("kv/range", {})

    assert (len(bad.requests), len(good.requests)) == (1, 2)


@in_loop(on_a_client_s_host)
async def test_an_error_names_every_member_and_its_fault(world: Simulation, /) -> None:
    await Member(plain({"error": "etcdserver: no leader", "code": 14}, b"503 x")).start(
        world, FIRST
    )
    world.network.cut(SECOND, "10.0.0.2")
    began = world.loop.time()
    with pytest.raises(EtcdUnreachableError) as caught:
        await EtcdClient(ETCD, 0.5).call("kv/txn", {})

    assert str(caught.value) == (
        f"{FIRST}:2379: etcdserver: no leader (code 14); {SECOND}:2379: no answer within 0.50 s"
    )
    assert world.loop.time() - began < 0.7


@in_loop(on_a_client_s_host)
async def test_a_refusal_is_not_carried_to_another_member(world: Simulation, /) -> None:
    refusing, other = Member(plain({"error": "denied", "code": 7}, b"403 x")), Member(plain({}))
    await refusing.start(world, FIRST)
    await other.start(world, SECOND)
    with pytest.raises(EtcdRefusedError, match=r"10\.0\.9\.1:2379: denied \(code 7\)"):
        await EtcdClient(ETCD, 1.0).call("kv/txn", {})

    assert not other.requests


@in_loop(on_a_client_s_host)
async def test_an_error_in_the_stream_of_a_lease_is_a_refusal(world: Simulation, /) -> None:
    fault = {"error": {"grpc_code": 5, "message": "etcdserver: requested lease not found"}}
    await Member(plain(fault)).start(world, FIRST)
    with pytest.raises(EtcdRefusedError, match="requested lease not found"):
        await EtcdClient(ETCD, 1.0).call("lease/keepalive", {})


@in_loop(on_a_client_s_host)
async def test_a_user_signs_in_once_and_again_when_its_token_is_over(world: Simulation, /) -> None:
    member = Member(
        plain({"token": "t1"}),
        plain({"a": 1}),
        plain({"a": 2}),
        plain({"error": "etcdserver: invalid auth token", "code": 16}, b"401 Unauthorized"),
        plain({"token": "t2"}),
        plain({"a": 3}),
    )
    await member.start(world, FIRST)
    client = EtcdClient(Etcd(((FIRST, 2379),), user="root", password="secret"), 1.0)
    assert [await client.call("kv/range", {}) for _ in range(3)] == [{"a": n} for n in (1, 2, 3)]

    assert [_token(head) for head, _ in member.requests] == ["", "t1", "t1", "t1", "", "t2"]
    assert member.requests[0][1] == {"name": "root", "password": "secret"}
    assert "secret" not in repr(ETCD)


def _token(head: str) -> str:
    return head.partition("Authorization: ")[2].split("\r\n")[0]
