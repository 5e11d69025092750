"""Starting and stopping: what a failed start leaves behind, what a broker calls itself, what comes
again and again."""

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.loops import in_loop
from tests.ports import free_ports
from tests.unit.broker.talking import SMALL, Talk, converse, pull, talking, watched
from tests.waits import until

from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import ConfigError, NotStartedError
from turbopump.message.batch import encode_batch
from turbopump.message.message import Message
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.groups import SubscriptionGroupConfig
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.remoting import server
from turbopump.store.log.scanner import EntryWalk
from turbopump.timetable import Timetable


@in_loop(watched)
async def test_a_start_that_fails_releases_everything(tmp_path: Path) -> None:
    port = free_ports(0, 2)
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
            async with talking(tmp_path, listen_port=port):
                pass
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
            async with talking(tmp_path, listen_port=port + 2):
                pass
    async with talking(tmp_path) as talk:
        await talk.client.send(b"works")


@in_loop(watched)
async def test_closing_twice_or_before_the_start_does_no_harm(tmp_path: Path) -> None:
    broker = Broker(BrokerConfig(store_path_root_dir=str(tmp_path), **SMALL))
    await broker.close()
    with pytest.raises(NotStartedError, match="the broker is not started"):
        _ = broker.store
    await broker.start()
    await broker.close()
    await broker.close()
    assert not (tmp_path / "abort").exists()


@in_loop(watched)
async def test_a_broker_stopped_in_the_middle_of_everything_keeps_what_it_answered(
    tmp_path: Path,
) -> None:
    answered: list[bytes] = []

    async with talking(tmp_path) as talk:
        await talk.client.create()

        async def producer(number: int) -> None:
            client = talk.another()
            for count in range(10_000):
                body = b"%d/%d" % (number, count)
                await client.send(body)
                answered.append(body)

        producers = [asyncio.ensure_future(producer(number)) for number in range(4)]
        held = asyncio.ensure_future(talk.another().ask(pull(10**6, topic="U", suspend_ms=60_000)))
        await until(lambda: len(answered) > 200)
        await talk.broker.close()
        await asyncio.wait([*producers, held])
        assert all(each.exception() is not None for each in producers)
    assert not (tmp_path / "abort").exists()
    async with talking(tmp_path) as talk:
        found = await talk.client.all_bodies()
        assert set(answered) <= set(found)
        assert len(found) == len(set(found))


@in_loop(watched)
async def test_messages_carry_the_advertised_address(tmp_path: Path) -> None:
    async with talking(tmp_path / "a", broker_ip1="192.0.2.7", advertised_port=4711) as talk:
        assert talk.broker.address == "192.0.2.7:4711"
        talk.client.address = f"127.0.0.1:{talk.broker.port}"
        reply = await talk.client.send()
        assert reply.msg_id.startswith("C000020700001267")
        (message,) = await talk.client.messages()
        assert message.store_host == ("192.0.2.7", 4711)
    async with talking(tmp_path / "b", broker_ip1="localhost") as talk:
        assert talk.broker.address == f"localhost:{talk.broker.port}"
        await talk.client.send()
        assert (await talk.client.messages())[0].store_host[0] == "127.0.0.1"
    async with talking(tmp_path / "c", broker_ip1="no.such.host.invalid") as talk:
        talk.client.address = f"127.0.0.1:{talk.broker.port}"
        await talk.client.send()
        assert (await talk.client.messages())[0].store_host[0] == "127.0.0.1", "what it listens on"


@in_loop(watched)
async def test_a_broker_on_ipv6_stores_long_hosts_that_can_be_read_again(tmp_path: Path) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    async with talking(tmp_path, bind_address="::1") as talk:
        assert talk.broker.address == f"[::1]:{talk.broker.port}"
        reply = await talk.client.send(b"one")
        assert len(reply.msg_id) == 56
        await talk.client.ask(
            SendMessageV2(topic="T", queue_id=0, batch=True), encode_batch([Message("T", b"two")])
        )
        messages = await talk.client.messages()
        assert [
            (message.body, message.born_host[0], message.store_host[0]) for message in messages
        ] == [(b"one", "::1", "::1"), (b"two", "::1", "::1")]
        assert len(list(EntryWalk(talk.broker.store.log).entries())) == 2


@in_loop(watched)
async def test_a_vip_port_that_is_taken_beside_a_picked_one_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    picked, bound_sockets = free_ports(-2, 0), server.bound_sockets
    monkeypatch.setattr(server, "bound_sockets", lambda *at: bound_sockets(at[0], at[1] or picked))
    caplog.set_level("INFO")
    with socket.create_server(("127.0.0.1", picked - 2)):
        async with talking(tmp_path) as talk:
            await talk.client.send(b"x")
    assert "no VIP port" in caplog.text


@in_loop(converse)
async def test_a_group_may_be_spared_notices(talk: Talk, /) -> None:
    talk.broker.tables.groups.put(
        SubscriptionGroupConfig(group_name="g", notify_consumer_ids_changed_enable=False)
    )
    await talk.client.join("c")
    await talk.another().join("d")
    assert await talk.client.members() == ["c", "d"]
    assert talk.client.noticed == []


@in_loop(converse)
async def test_batch_messages_with_too_many_properties_are_refused(talk: Talk, /) -> None:
    batch = encode_batch([Message("T", b"x", properties={"p": "v" * 32_750})])
    code, remark = await talk.client.code(SendMessageV2(topic="T", queue_id=0, batch=True), batch)
    assert (code, "with those the broker adds" in remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
    unended = encode_batch([Message("T", b"x", tags="t")]).replace(
        b"\x00\x07TAGS\x01t\x02", b"\x00\x07TAGS\x01tt"
    )
    assert (await talk.client.code(SendMessageV2(topic="T", queue_id=0, batch=True), unended))[
        0
    ] == 0
    (message,) = await talk.client.messages()
    assert (message.tags, message.properties["TRACE_ON"]) == ("tt", "true")


@in_loop(watched)
async def test_a_repeating_action_that_fails_comes_again_and_none_comes_after_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        timetable = Timetable()
        calls: list[int] = []

        def action() -> None:
            calls.append(1)
            raise ValueError("not today")

        timetable.every(0, action)
        await until(lambda: len(calls) >= 3)
        timetable.close()
        count = len(calls)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(calls) == count
    assert caplog.text.count("repeating action failed") == caplog.text.count("Traceback") == 1


@in_loop(converse, flush_consumer_offset_interval=1)
async def test_offsets_are_saved_while_the_broker_runs(talk: Talk, /, tmp_path: Path) -> None:
    await talk.client.send()
    await talk.client.pull(0, flags=1, commit_offset=1)
    path = tmp_path / "config" / "consumerOffset.json"
    await until(lambda: path.exists() and b'"T@g"' in path.read_bytes())


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@in_loop(watched)
async def test_no_file_of_a_store_is_open_to_every_user(tmp_path: Path, no_umask: None) -> None:
    root = tmp_path / "store"
    for _ in range(2):
        async with talking(root, message_delay_level="1s", flush_disk_type="SYNC_FLUSH") as talk:
            await talk.client.create()
            for wait in ("", "DELAY\x011\x02", "TIMER_DELAY_MS\x011\x02UNIQ_KEY\x01U\x02"):
                await talk.client.send(b"x", properties=wait)
            await talk.client.join("reader")
    found = [root, *root.rglob("*")]
    assert len(found) > 20
    assert [path for path in found if path.stat().st_mode & 0o027] == []
