"""A user is disabled, a policy narrowed, a certificate replaced, while others work: it is in force
at once, and nobody else notices."""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.auth.over_tls import over_tls
from tests.unit.auth.signed import ADMINISTRATOR, ON, asking
from tests.unit.remoting.certificates import Pair
from tests.waits import until

from turbopump import ClientTls, Credentials, Producer, PushConsumer
from turbopump.auth.accounts import Accounts
from turbopump.auth.server_access import FILE_NAME, LOOK_INTERVAL_S, change_file
from turbopump.broker.pop.group_queue import TopicGroup
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import SendError
from turbopump.message.codec import encode_host
from turbopump.namesrv.server import NameServer
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.access import (
    AclInfo,
    CreateAcl,
    CreateUser,
    PolicyEntryInfo,
    PolicyInfo,
    UpdateAcl,
    UpdateUser,
    UserInfo,
)
from turbopump.protocol.requests.namesrv import GetAllTopicList
from turbopump.protocol.requests.pop import Notification, PopMessage
from turbopump.protocol.requests.pull import PullMessage, PullSysFlag
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.tls import LOOK_AGAIN_S
from turbopump.store.message_store import NewMessage
from turbopump.testing.broker_in_loop import RunningBroker, running_broker

USERS = [Credentials(f"user-{number}", f"secret {number}") for number in range(4)]
IN_FORCE_S = 2.0
"""The goal. Who waits here waits longer: a busy machine stretches everything but the looks."""


def acl(*actions: str, resource: str = "Topic:T") -> AclInfo:
    entry = PolicyEntryInfo(resource=resource, actions=list(actions), decision="Allow")
    return AclInfo(policies=[PolicyInfo(entries=[entry])])


def shown_certificate(address: str) -> bytes:
    host, port = address.split(":")
    return ssl.get_server_certificate((host, int(port))).encode()


async def shows(address: str, pair: Pair) -> None:
    """Until a server shows new connections the certificate that is in the file."""
    there = Path(pair.certificate).read_bytes()
    async with asyncio.timeout(60):
        while await asyncio.to_thread(shown_certificate, address) != there:
            await asyncio.sleep(0)


class Sending:
    """Users that send one message after the other, until one is refused."""

    def __init__(self, running: RunningBroker, tls: ClientTls) -> None:
        self._running = running
        self._tls = tls
        self.sent = dict.fromkeys(USERS, 0)
        self.refused: set[Credentials] = set()
        self._stop = asyncio.Event()

    async def send_on(self, user: Credentials) -> None:
        async with Producer(
            self._running.namesrv, credentials=user, retries=0, tls=self._tls, send_timeout=20
        ) as producer:
            while not self._stop.is_set():
                try:
                    await producer.send("T", b"x")
                    self.sent[user] += 1
                except SendError:
                    self.refused.add(user)
                    return

    def stop(self) -> None:
        self._stop.set()

    async def more(self, user: Credentials) -> None:
        """Until this user has sent some more."""
        enough = self.sent[user] + 20
        async with asyncio.timeout(60):
            while self.sent[user] < enough:
                await asyncio.sleep(0)

    async def refusal_of(self, user: Credentials) -> None:
        async with asyncio.timeout(60):
            while user not in self.refused:
                await asyncio.sleep(0)

    async def refused_at_once(self, user: Credentials) -> None:
        """A message may have been stored before the change that is not acknowledged yet."""
        sent = self.sent[user]
        await self.refusal_of(user)
        assert self.sent[user] - sent <= 1


def without(in_file: Any, accounts: Accounts) -> Accounts:
    return accounts.without_user(in_file.access_key)


@in_loop
async def test_nobody_else_notices_that_users_may_less(tmp_path: Path) -> None:
    """All connections are there before anything changes, those of producers and of a consumer."""
    disabled, narrowed, in_file, untouched = USERS
    pair = Pair(tmp_path)
    before = pair.trusted()
    async with AsyncExitStack() as stack:
        settings = over_tls(pair) | {"broker_fast_failure_enable": False}  # on a busy machine
        running = await stack.enter_async_context(running_broker(directory=tmp_path, **settings))
        admin = await stack.enter_async_context(asking(tls=before))
        at = running.broker_address
        await admin.call(at, CreateTopic(topic="T", read_queue_nums=1, write_queue_nums=1))
        for user in USERS:
            name, info = user.access_key, UserInfo(password=user.secret_key)
            for address in (running.namesrv, at):
                await admin.call(address, CreateUser(username=name), info)
                await admin.call(address, CreateAcl(subject=f"User:{name}"), acl("Pub", "Sub"))
        reads = f"User:{untouched.access_key}"
        for address in (running.namesrv, at):
            await admin.call(address, CreateAcl(subject=reads), acl("Sub", resource="Group:G"))
        consumer = await stack.enter_async_context(
            PushConsumer(running.namesrv, group="G", topic="T", credentials=untouched, tls=before)
        )
        sending = Sending(running, before)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for user in USERS:
            group.create_task(sending.send_on(user))
        for user in USERS:
            await sending.more(user)
        await read_more(consumer)

        name = disabled.access_key
        await admin.call(at, UpdateUser(username=name), UserInfo(user_status="disable"))
        await sending.refused_at_once(disabled)
        await admin.call(at, UpdateAcl(subject=f"User:{narrowed.access_key}"), acl("Sub"))
        await sending.refused_at_once(narrowed)

        change_file(
            SystemDisk(), tmp_path / "config" / "auth" / FILE_NAME, partial(without, in_file)
        )
        await sending.refusal_of(in_file)
        pair.make()
        for address in (running.namesrv, at):
            await shows(address, pair)
        await sending.more(untouched)
        await read_more(consumer)
        sending.stop()
    assert sending.refused == {disabled, narrowed, in_file}
    assert max(LOOK_INTERVAL_S, LOOK_AGAIN_S) <= IN_FORCE_S / 2


async def read_more(consumer: PushConsumer) -> None:
    """Some messages that were sent after this was called, and those before them."""
    begun = time.time_ns() // 1_000_000
    async with asyncio.timeout(60):
        newest = 0
        while newest <= begun:
            for taken in await consumer.take(32):
                newest = taken.born_timestamp
                taken.done()


@in_loop
async def test_a_name_server_refuses_whoever_may_less_and_nobody_else_notices(
    tmp_path: Path,
) -> None:
    disabled, narrowed, in_file, untouched = USERS
    pair = Pair(tmp_path)
    before = pair.trusted()
    async with AsyncExitStack() as stack:
        server = NameServer(
            NamesrvConfig(
                listen_port=0,
                auth_config_path=str(tmp_path),
                kv_config_path=str(tmp_path / "kvConfig.json"),
                **over_tls(pair),
            ),
            disk=SystemDisk(),
        )
        stack.push_async_callback(server.close)
        host, port = await server.start()
        at = f"{host}:{port}"
        admin = await stack.enter_async_context(asking(tls=before))
        clients = {}
        may = acl("List", resource="Cluster:*")
        for user in USERS:
            name = user.access_key
            await admin.call(at, CreateUser(username=name), UserInfo(password=user.secret_key))
            await admin.call(at, CreateAcl(subject=f"User:{name}"), may)
            clients[user] = await stack.enter_async_context(asking(user, tls=before))

        async def served() -> set[Credentials]:
            """Who is; the others are refused."""
            codes = {
                user: (await client.exchange(at, GetAllTopicList())).code
                for user, client in clients.items()
            }
            assert {*codes.values()} <= {ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION}
            return {user for user, code in codes.items() if code == ResponseCode.SUCCESS}

        assert await served() == {*USERS}
        name = disabled.access_key
        await admin.call(at, UpdateUser(username=name), UserInfo(user_status="disable"))
        assert await served() == {narrowed, in_file, untouched}
        less = acl("Get", resource="Cluster:*")
        await admin.call(at, UpdateAcl(subject=f"User:{narrowed.access_key}"), less)
        assert await served() == {in_file, untouched}
        change_file(
            SystemDisk(),
            tmp_path / FILE_NAME,
            lambda accounts: accounts.without_user(in_file.access_key),
        )
        pair.make()
        await shows(at, pair)
        async with asyncio.timeout(60):
            while in_file in (there := await served()):
                assert there == {in_file, untouched}
        assert await served() == {untouched}


PULL = PullMessage(
    consumer_group="G",
    topic="T",
    queue_id=0,
    queue_offset=0,
    sys_flag=PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION,
    suspend_timeout_millis=60_000,
    subscription="*",
)
POP = PopMessage(
    consumer_group="G",
    topic="T",
    queue_id=0,
    max_msg_nums=1,
    invisible_time=60_000,
    poll_time=60_000,
    born_time=0,
    init_mode=0,
)
NOTIFICATION = Notification(
    consumer_group="G", topic="T", queue_id=0, poll_time=60_000, born_time=0
)


async def waits_for_a_message(
    running: RunningBroker, admin: RemotingClient, client: RemotingClient, asked: Request[Any]
) -> asyncio.Task[Command]:
    """The answer to a consumer who may read, and for whom there is nothing yet."""
    at, broker, name = running.broker_address, running.broker, USERS[0].access_key
    await running.create_topic("T", credentials=ADMINISTRATOR)
    entries = [
        PolicyEntryInfo(resource=resource, actions=["Sub"], decision="Allow")
        for resource in ("Topic:T", "Group:G")
    ]
    await admin.call(at, CreateUser(username=name), UserInfo(password=USERS[0].secret_key))
    may = AclInfo(policies=[PolicyInfo(entries=entries)])
    await admin.call(at, CreateAcl(subject=f"User:{name}"), may)
    waiting = asyncio.create_task(client.exchange(at, asked, timeout=60))
    line = TopicGroup("T", "G")
    await until(
        lambda: (
            len(broker.parts.delivering.held_pulls)
            + broker.parts.delivering.pop.held.count_waiting(line, 0)
            == 1
        )
    )
    return waiting


@pytest.mark.parametrize("asked", [PULL, POP, NOTIFICATION], ids=lambda one: type(one).__name__)
@in_loop
async def test_what_waits_for_a_message_is_answered_when_its_user_may_less(
    asked: Request[Any],
) -> None:
    async with running_broker(**ON) as running, asking() as admin, asking(USERS[0]) as client:
        at = running.broker_address
        waiting = await waits_for_a_message(running, admin, client, asked)
        await admin.call(at, CreateUser(username="new"), UserInfo(password="n"))
        assert not waiting.done()  # nobody may less
        disabled = UserInfo(user_status="disable")
        await admin.call(at, UpdateUser(username=USERS[0].access_key), disabled)
        answer = await asyncio.wait_for(waiting, 20)
        assert answer.body == b""
        assert (await client.exchange(at, asked)).code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("asked", [PULL, POP], ids=lambda one: type(one).__name__)
@in_loop
async def test_a_message_that_comes_before_they_are_answered_is_not_given_to_who_may_less(
    asked: Request[Any],
) -> None:
    async with running_broker(**ON) as running, asking() as admin, asking(USERS[0]) as client:
        waiting = await waits_for_a_message(running, admin, client, asked)
        access, host = running.broker.access, encode_host("127.0.0.1", 1)
        assert access is not None
        disabled = UserInfo(username=USERS[0].access_key, user_status="disable")
        access.control.accounts = access.control.accounts.with_changed_user(disabled)
        message = NewMessage(b"x", b"", 0, 0)
        running.broker.store.put(
            "T", 0, message, sys_flag=0, born_timestamp=0, born_host=host, store_host=host
        )
        answer = await asyncio.wait_for(waiting, 20)
        assert (answer.code == ResponseCode.SUCCESS, answer.body) == (False, b"")
        taken = await admin.exchange(running.broker_address, asked)
        assert (taken.code, taken.body != b"") == (ResponseCode.SUCCESS, True)
