"""A user is disabled, or a policy narrowed, while others work: it is in force at once, and nobody
else notices."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.auth.signed import ADMINISTRATOR, ON, asking
from tests.unit.remoting.serving import until

from turbopump import Credentials, Producer
from turbopump.auth.accounts import Accounts
from turbopump.auth.server_access import FILE_NAME, change_file
from turbopump.broker.pop.held_pops import TopicGroup
from turbopump.errors import SendError
from turbopump.message.codec import encode_host
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
from turbopump.protocol.requests.pop import Notification, PopMessage
from turbopump.protocol.requests.pull import PullMessage, PullSysFlag
from turbopump.remoting.client import RemotingClient
from turbopump.store.disk import SystemDisk
from turbopump.store.message_store import NewMessage
from turbopump.testing.broker_in_loop import RunningBroker, running_broker

USERS = [Credentials(f"user-{number}", f"secret {number}") for number in range(4)]
IN_FORCE_S = 2.0


def acl(action: str) -> AclInfo:
    entry = PolicyEntryInfo(resource="Topic:T", actions=[action], decision="Allow")
    return AclInfo(policies=[PolicyInfo(entries=[entry])])


class Sending:
    """Users that send one message after the other; when each was refused first."""

    def __init__(self, running: RunningBroker) -> None:
        self._running = running
        self.sent = dict.fromkeys(USERS, 0)
        self.refused: dict[Credentials, float] = {}
        self._stop = asyncio.Event()

    async def send_on(self, user: Credentials) -> None:
        loop = asyncio.get_running_loop()
        async with Producer(self._running.namesrv, credentials=user, retries=0) as producer:
            while not self._stop.is_set():
                try:
                    await producer.send("T", b"x")
                    self.sent[user] += 1
                except SendError:
                    self.refused.setdefault(user, loop.time())
                    return

    def stop(self) -> None:
        self._stop.set()

    async def more(self, user: Credentials) -> None:
        """Until this user has sent some more."""
        enough = self.sent[user] + 20
        async with asyncio.timeout(20):
            while self.sent[user] < enough:
                await asyncio.sleep(0)

    async def refusal_of(self, user: Credentials) -> float:
        async with asyncio.timeout(20):
            while user not in self.refused:
                await asyncio.sleep(0)
        return self.refused[user]


@in_loop
async def test_nobody_else_notices_that_users_may_less(tmp_path: Path) -> None:
    disabled, narrowed, in_file, untouched = USERS
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(running_broker(directory=tmp_path, **ON))
        admin = await stack.enter_async_context(asking())
        at, loop = running.broker_address, asyncio.get_running_loop()
        await running.create_topic("T", credentials=ADMINISTRATOR)
        for user in USERS:
            name, info = user.access_key, UserInfo(password=user.secret_key)
            for address in (running.namesrv, at):
                await admin.call(address, CreateUser(username=name), info)
                await admin.call(address, CreateAcl(subject=f"User:{name}"), acl("Pub"))
        sending = Sending(running)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for user in USERS:
            group.create_task(sending.send_on(user))
        for user in USERS:
            await sending.more(user)

        name, changed_at = disabled.access_key, loop.time()
        await admin.call(at, UpdateUser(username=name), UserInfo(user_status="disable"))
        assert 0 <= await sending.refusal_of(disabled) - changed_at <= IN_FORCE_S
        subject, changed_at = f"User:{narrowed.access_key}", loop.time()
        await admin.call(at, UpdateAcl(subject=subject), acl("Sub"))
        assert 0 <= await sending.refusal_of(narrowed) - changed_at <= IN_FORCE_S

        def without(accounts: Accounts) -> Accounts:
            return accounts.without_user(in_file.access_key)

        changed_at = loop.time()
        change_file(SystemDisk(), tmp_path / "config" / "auth" / FILE_NAME, without)
        assert 0 <= await sending.refusal_of(in_file) - changed_at <= IN_FORCE_S
        await sending.more(untouched)
        sending.stop()
    assert sending.refused.keys() == {disabled, narrowed, in_file}


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
    await until(lambda: len(broker.held_pulls) + broker.pop.held.count(line, 0) == 1)
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
        answer = await asyncio.wait_for(waiting, IN_FORCE_S)
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
        answer = await asyncio.wait_for(waiting, IN_FORCE_S)
        assert (answer.code == ResponseCode.SUCCESS, answer.body) == (False, b"")
        taken = await admin.exchange(running.broker_address, asked)
        assert (taken.code, taken.body != b"") == (ResponseCode.SUCCESS, True)
