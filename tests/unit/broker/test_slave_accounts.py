"""Users and policies of a slave: those of its master, whatever happened meanwhile."""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from tests.loops import in_loop
from tests.stand_ins import raises, returns
from tests.unit.broker.accounts_of_slaves import (
    ADMIN,
    BILLING,
    BROKER,
    ON,
    access_of,
    accounts_of,
    until_same_accounts,
)
from tests.unit.broker.replicas import (
    MASTER,
    NAMESRV,
    SECOND_SLAVE,
    SLAVE,
    Replicas,
    eventually,
    with_replicas,
)
from tests.unit.broker.talking import pull
from tests.waits import is_logged, until, until_logged

from turbopump.admin.cluster import Servers
from turbopump.admin.replication import Replication, replication_problems
from turbopump.auth.accounts import SUBJECT, Accounts
from turbopump.auth.sealing import NONCE_SIZE, seal
from turbopump.auth.server_access import FILE_NAME, ServerAccess
from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.broker.broker import Broker
from turbopump.broker.slave_accounts import SlaveAccounts
from turbopump.config.broker_config import BrokerConfig, BrokerRole
from turbopump.disk.system_disk import SystemDisk
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Body, Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.access import (
    SEALED,
    SWITCHED_OFF,
    AclInfo,
    CreateAcl,
    CreateUser,
    DeleteAcl,
    DeleteUser,
    ListUsers,
    PolicyEntryInfo,
    PolicyInfo,
    UpdateUser,
    UserInfo,
)
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.client import RemotingClient

PATH: Final = Path("/store/config/auth") / FILE_NAME


def allowing(*resources: str, user: str = "billing") -> AclInfo:
    entries = [
        PolicyEntryInfo(resource=one, actions=["All"], decision="Allow") for one in resources
    ]
    return AclInfo(subject=SUBJECT + user, policies=[PolicyInfo(entries=entries)])


async def told(
    host: str, request: Request[Any], body: Body = b"", credentials: Credentials = ADMIN
) -> Command:
    remoting = RemotingClient(signer=RequestSigner(credentials))
    try:
        return await remoting.exchange(f"{host}:10911", request, body, timeout=10)
    finally:
        await remoting.close()


async def changed(host: str, request: Request[Any], body: Body = b"") -> None:
    answer = await told(host, request, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def make_billing(host: str) -> None:
    info = UserInfo(password=BILLING.secret_key)
    await changed(host, CreateUser(username="billing"), info)
    acl = allowing("Topic:T", "Topic:U", "Group:g")
    await changed(host, CreateAcl(subject=acl.subject), acl)


async def make_topics() -> None:
    """T and U, each with a message."""
    for topic in "TU":
        await changed(MASTER, CreateTopic(topic=topic, read_queue_nums=1, write_queue_nums=1))
        await changed(MASTER, SendMessageV2(topic=topic, queue_id=0), b"x")


async def read(host: str, credentials: Credentials = BILLING, topic: str = "T") -> int:
    """The code of the answer to a pull."""
    return (await told(host, pull(0, topic=topic), credentials=credentials)).code


async def until_copied(slave: Broker, topic: str) -> None:
    """Wait until a slave has the topic, and a message of it."""
    await eventually(lambda: slave.store.max_offset(topic, 0) and slave.tables.topics.find(topic))


async def two_rounds(slave: Broker) -> None:
    """Until a round of copying is over that had not begun yet."""
    copy = slave.parts.copying.slave_accounts
    assert copy is not None
    wanted = copy.rounds + 2
    await eventually(lambda: copy.rounds >= wanted)


@in_loop(with_replicas)
async def test_a_user_made_at_the_master_reads_from_the_slave_and_goes_on_at_its_promotion(
    replicas: Replicas, /
) -> None:
    master = await replicas.master(**ON)
    slave = await replicas.slave(**ON)
    await make_topics()
    await make_billing(MASTER)
    await eventually(lambda: "billing" in accounts_of(slave).policies, seconds=2)
    assert accounts_of(slave) == accounts_of(master)
    assert accounts_of(slave).users["billing"].password == BILLING.secret_key
    await until_copied(slave, "U")
    replicas.kill(MASTER)
    refused = await read(SLAVE, Credentials("billing", "another"))
    found = await read(SLAVE)
    assert (refused, found) == (ResponseCode.NO_PERMISSION, ResponseCode.SUCCESS)
    await replicas.stop(SLAVE)
    promoted = await replicas.broker(SLAVE, BrokerRole.ASYNC_MASTER, **ON, broker_id=0)
    assert accounts_of(promoted) == accounts_of(master)
    assert await read(SLAVE) == ResponseCode.SUCCESS
    sent = await told(SLAVE, SendMessageV2(topic="T", queue_id=0), b"y", BILLING)
    assert sent.code == ResponseCode.SUCCESS


@in_loop(with_replicas)
async def test_a_slave_that_was_away_has_no_stale_user_password_or_policy(
    replicas: Replicas, /
) -> None:
    master = await replicas.master(**ON)
    slave = await replicas.slave(**ON)
    await make_topics()
    await make_billing(MASTER)
    await changed(MASTER, CreateUser(username="mallory"), UserInfo(password="m"))
    await changed(MASTER, CreateUser(username="carol"), UserInfo(password="c", user_type="Super"))
    await until_same_accounts(slave, master)
    await replicas.stop(SLAVE)
    await changed(MASTER, DeleteUser(username="mallory"))
    await changed(MASTER, UpdateUser(username="carol"), UserInfo(user_type="Normal"))
    await changed(MASTER, UpdateUser(username="billing"), UserInfo(password="new"))
    await changed(MASTER, DeleteAcl(subject="User:billing", resource="Topic:U"))
    slave = await replicas.slave(**ON)
    await until_same_accounts(slave, master, seconds=2)
    await until_copied(slave, "U")
    assert "mallory" not in accounts_of(slave).users
    now = Credentials("billing", "new")
    codes = [await read(SLAVE), await read(SLAVE, now), await read(SLAVE, now, "U")]
    assert codes == [16, 0, 16]


@in_loop(with_replicas)
async def test_accounts_are_copied_also_while_the_log_is_not(replicas: Replicas, /) -> None:
    master = await replicas.master(**ON)
    slave = await replicas.slave(**ON, ha_master_address=f"{SLAVE}:1")
    await make_billing(MASTER)
    await until_same_accounts(slave, master, seconds=2)
    assert slave.parts.listening.replication.slave is not None
    assert not slave.parts.listening.replication.slave.accepted


@in_loop(with_replicas)
async def test_a_pull_that_waits_at_the_slave_is_answered_when_its_user_is_deleted_at_the_master(
    replicas: Replicas, /
) -> None:
    await replicas.master(**ON)
    slave = await replicas.slave(**ON)
    await make_topics()
    await make_billing(MASTER)
    await until_copied(slave, "T")
    await eventually(lambda: "billing" in accounts_of(slave).policies)
    waiting = asyncio.ensure_future(told(SLAVE, pull(1, suspend_ms=9000), credentials=BILLING))
    await eventually(lambda: len(slave.parts.delivering.held_pulls))
    await changed(MASTER, DeleteUser(username="billing"))
    async with asyncio.timeout(2):
        answered = await waiting
    assert (answered.code, answered.body) == (ResponseCode.PULL_NOT_FOUND, b"")
    assert await read(SLAVE) == ResponseCode.NO_PERMISSION


@in_loop(with_replicas)
async def test_what_was_changed_at_the_slave_gives_way_to_the_master_s(
    replicas: Replicas, /
) -> None:
    master = await replicas.master(**ON)
    slave = await replicas.slave(**ON)
    await make_billing(MASTER)
    await until_same_accounts(slave, master)
    await changed(SLAVE, CreateUser(username="mallory"), UserInfo(password="m"))
    await until_same_accounts(slave, master, seconds=2)
    disk = replicas.simulation.disk(SLAVE).mounted
    assert disk is not None
    by_hand = accounts_of(master).without_user("billing")
    disk.replace_file(PATH, by_hand.encode(), private=True)
    await eventually(lambda: accounts_of(slave) == by_hand, seconds=2)
    await until_same_accounts(slave, master, seconds=2)
    assert disk.read_file(PATH) == accounts_of(master).encode()


@in_loop(with_replicas)
async def test_a_slave_copies_no_accounts_of_a_former_master_that_is_a_slave_now(
    replicas: Replicas, /, caplog: pytest.LogCaptureFixture
) -> None:
    master = await replicas.master(**ON)
    await replicas.slave(**ON)
    other = await replicas.slave(SECOND_SLAVE, **ON)
    await make_billing(MASTER)
    await until_same_accounts(other, master)
    assert other.parts.copying.slave_tables is not None
    await eventually(lambda: other.parts.copying.slave_tables.master == f"{MASTER}:10911")
    replicas.kill(MASTER)
    await replicas.stop(SLAVE)
    promoted = await replicas.broker(SLAVE, BrokerRole.ASYNC_MASTER, **ON, broker_id=0)
    for host in (SLAVE, SECOND_SLAVE):  # as the command does
        await changed(host, DeleteUser(username="billing"))
    former = await replicas.slave(MASTER, **ON, broker_id=1)
    assert former.parts.copying.slave_accounts is not None
    await former.parts.copying.slave_accounts.stop()  # it has not heard of the deletion yet
    assert former.access is not None
    former.access.control.accounts = accounts_of(master)
    await eventually(is_logged, caplog, "this broker is a slave, too")
    assert accounts_of(other) == accounts_of(promoted)


@pytest.mark.parametrize("text", [None, b"", b"{", b'{"users": 1}'])
@in_loop(with_replicas)
async def test_a_slave_s_file_that_is_gone_or_unreadable_gives_way_to_the_master_s(
    replicas: Replicas, /, text: bytes | None
) -> None:
    master = await replicas.master(**ON)
    slave = await replicas.slave(**ON)
    await make_billing(MASTER)
    await until_same_accounts(slave, master)
    disk = replicas.simulation.disk(SLAVE).mounted
    assert disk is not None
    if text is None:
        disk.remove(PATH)
    else:
        disk.replace_file(PATH, text, private=True)
    await changed(MASTER, UpdateUser(username="billing"), UserInfo(password="new"))

    def is_copied() -> bool:
        assert "billing" in accounts_of(slave).users, "who is known stays known meanwhile"
        return accounts_of(slave) == accounts_of(master)

    await eventually(is_copied, seconds=2)
    assert disk.read_file(PATH) == accounts_of(master).encode()


@in_loop(with_replicas)
async def test_a_tool_that_changes_all_brokers_one_by_one_may_come_after_the_copy(
    replicas: Replicas, /
) -> None:
    master = await replicas.master(**ON)
    slave = await replicas.slave(**ON)
    acl, info = allowing("Topic:T"), UserInfo(password="s")
    for request, body in (
        (CreateUser(username="billing"), info),
        (CreateAcl(subject=acl.subject), acl),
        (UpdateUser(username="billing"), UserInfo(user_status="disable")),
        (DeleteAcl(subject=acl.subject, resource="Topic:T"), b""),
        (DeleteUser(username="billing"), b""),
    ):
        await changed(MASTER, request, body)
        await until_same_accounts(slave, master)
        await changed(SLAVE, request, body)
        assert accounts_of(slave) == accounts_of(master), request
    await changed(MASTER, CreateUser(username="billing"), info)
    await eventually(lambda: "billing" in accounts_of(slave).users)
    again = await told(SLAVE, CreateUser(username="billing"), UserInfo(password="another"))
    assert (again.code, "existed" in (again.remark or "")) == (16, True)
    again = await told(MASTER, CreateUser(username="billing"), info)
    assert again.code == ResponseCode.NO_PERMISSION, "a master's answer is Apache's"


def noted(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "stay as they are" in line]


@pytest.mark.parametrize(
    ("of_master", "of_slave", "cause"),
    [
        (ON, access_of("another secret"), "access denied"),
        ({}, ON, "access control is off on this server"),
        (access_of(init_authentication_user=""), ON, None),
    ],
    ids=["other credentials", "a master without access control", "the same credentials"],
)
@in_loop(with_replicas)
async def test_accounts_go_only_to_who_has_the_brokers_credentials(
    replicas: Replicas,
    /,
    of_master: dict[str, Any],
    of_slave: dict[str, Any],
    cause: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "turbopump")
    await replicas.master(**of_master)
    slave = await replicas.slave(**of_slave)
    before = accounts_of(slave)

    if cause is None:
        await eventually(lambda: "admin" not in accounts_of(slave).users)
        return
    await eventually(partial(noted, caplog))
    (line,) = noted(caplog)
    assert cause in line
    assert accounts_of(slave) == before
    assert not any(one in caplog.text for one in (BROKER.secret_key, "another secret"))


async def problems(credentials: Credentials) -> list[str]:
    async with Servers([f"{NAMESRV}:9876"], credentials) as servers:
        found = replication_problems(await Replication(servers).states(), "-n ns")
        return [one.message for one in found if "users and policies" in one.message]


@in_loop(with_replicas)
async def test_a_slave_with_other_accounts_is_reported_to_the_operator(
    replicas: Replicas, /
) -> None:
    master = await replicas.master(**ON)
    slave = await replicas.slave(**ON)
    await make_billing(MASTER)
    await until_same_accounts(slave, master)

    looker = Credentials("looker", "l")
    await changed(MASTER, CreateUser(username="looker"), UserInfo(password="l"))
    acl = allowing("Cluster:*", user="looker")
    await changed(MASTER, CreateAcl(subject=acl.subject), acl)
    await until_same_accounts(slave, master)
    assert (await problems(ADMIN), await problems(looker)) == ([], [])

    assert slave.parts.copying.slave_accounts is not None
    await slave.parts.copying.slave_accounts.stop()
    await changed(MASTER, UpdateUser(username="billing"), UserInfo(password="new"))
    begins = f"its slave 1 ({SLAVE}:10911) has other users and policies than its master: "
    assert await problems(ADMIN) == [begins + "billing has another password"]
    assert await problems(looker) == [], "who is not Super is shown no passwords"
    await changed(MASTER, DeleteUser(username="billing"))
    await changed(MASTER, CreateUser(username="dave"), UserInfo(password="d"))
    for credentials in (ADMIN, looker):
        expected = [begins + "billing is only there; dave is missing"]
        assert await problems(credentials) == expected
    await replicas.stop(SLAVE)
    await replicas.slave()
    assert await problems(ADMIN) == [begins + "one has no access control"]


# --- a broker at the master's address that is not what it seems


class Forger:
    """Answers a slave's question with what ``forge`` makes of it."""

    def __init__(self, forge: Callable[[ListUsers], Command]) -> None:
        self.forge = forge
        self.asked: list[ListUsers] = []

    async def exchange(
        self, _address: str, request: ListUsers, _body: Body = b"", *, timeout: float = 3.0
    ) -> Command:
        self.asked.append(request)
        return self.forge(request)


def answer(body: bytes = b"", code: int = 0, ext: dict[str, str] | None = None) -> Command:
    return Command(code, body=body, ext=ext, remark=SWITCHED_OFF if code else None)


def sealed(content: bytes, secret: str, asked: str) -> Command:
    return answer(seal(content, secret, asked, b"n" * NONCE_SIZE), ext={SEALED: "true"})


EVIL: Final = Accounts().with_new_user(
    UserInfo(username="mallory", password="m", user_type="Super")
)
OWN: Final = BROKER.secret_key
GOOD: Final = EVIL.with_new_user(UserInfo(username="ann", password="a"))


@pytest.mark.parametrize(
    ("forge", "says"),
    [
        (returns(answer(b'[{"username": "mallory"}]')), "shows no passwords"),
        (returns(answer(EVIL.encode())), "shows no passwords"),
        (returns(answer(EVIL.encode(), ext={SEALED: "true"})), "not sealed with the secret"),
        (lambda asked: sealed(EVIL.encode(), "guess", asked.nonce), "not sealed with the secret"),
        (lambda _: sealed(EVIL.encode(), OWN, "an older request"), "not sealed with the secret"),
        (returns(answer(ext={SEALED: "true"})), "not sealed with the secret"),
        (lambda asked: sealed(GOOD.encode()[:-9], OWN, asked.nonce), "not the JSON of an account"),
        (lambda asked: sealed(b'{"users": [], "new": 1}', OWN, asked.nonce), "not the JSON of an"),
        (returns(answer(code=1)), "access control is off"),
    ],
    ids=[
        "Apache's list",
        "plain accounts",
        "plain accounts that are said to be sealed",
        "another secret",
        "an old answer",
        "nothing",
        "a broken file",
        "a file of a newer version",
        "no access control",
    ],
)
@in_loop
async def test_what_is_not_surely_the_master_s_replaces_nothing(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    forge: Callable[[ListUsers], Command],
    says: str,
) -> None:
    access = ServerAccess(BrokerConfig(**ON), tmp_path, SystemDisk(), returns(("c",)))
    access.open()
    file, before = (tmp_path / FILE_NAME).read_bytes(), access.control.accounts
    forger: Any = Forger(forge)
    copy = SlaveAccounts(access, BROKER, forger, returns("h:1"))
    copy.start()
    try:
        await until_logged(caplog, "stay as they are")
    finally:
        await copy.stop()
    assert says in caplog.text
    assert access.control.accounts == before
    assert (tmp_path / FILE_NAME).read_bytes() == file
    assert copy.rounds == 0


@in_loop
async def test_what_was_changed_here_while_the_master_answered_is_not_overwritten_by_that_answer(
    tmp_path: Path,
) -> None:
    access = ServerAccess(BrokerConfig(**ON), tmp_path, SystemDisk(), returns(("c",)))
    access.open()
    ann = UserInfo(username="ann", password="a")
    here = access.control.accounts.with_new_user(ann)

    def answered(request: ListUsers) -> Command:
        if len(forger.asked) == 1:  # another process, between
            (tmp_path / FILE_NAME).write_bytes(here.encode())
            return sealed(EVIL.encode(), OWN, request.nonce or "")
        return sealed(b"", OWN, request.nonce or "")

    forger = Forger(answered)
    as_client: Any = forger
    copy = SlaveAccounts(access, BROKER, as_client, returns("h:1"))
    copy.start()
    try:
        await until(lambda: copy.rounds == 2)
    finally:
        await copy.stop()
    assert access.control.accounts == here
    first, second = forger.asked
    assert first.nonce != second.nonce
    assert first.known_version != second.known_version


@in_loop
async def test_a_disk_that_cannot_be_written_to_keeps_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SystemDisk()
    access = ServerAccess(BrokerConfig(**ON), tmp_path, disk, returns(("c",)))
    access.open()
    before, file = access.control.accounts, (tmp_path / FILE_NAME).read_bytes()
    (tmp_path / FILE_NAME).chmod(0o644)

    monkeypatch.setattr(disk, "replace_file", raises(OSError(28, "No space left on device")))
    forger: Any = Forger(lambda request: sealed(GOOD.encode(), OWN, request.nonce or ""))
    copy = SlaveAccounts(access, BROKER, forger, returns("h:1"))
    copy.start()
    try:
        await until_logged(caplog, "No space left on device")
        assert (access.control.accounts, copy.rounds) == (before, 0)
        assert (tmp_path / FILE_NAME).read_bytes() == file
        monkeypatch.undo()
        await until(lambda: copy.rounds)
    finally:
        await copy.stop()
    assert access.control.accounts == GOOD
    assert Accounts.decode((tmp_path / FILE_NAME).read_bytes()) == GOOD
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600
