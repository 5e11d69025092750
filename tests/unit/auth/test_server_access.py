"""A name server and a broker that know their users: who is served, and how users and policies are
changed while they run."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from tests.loops import in_loop
from tests.ports import free_ports
from tests.stand_ins import returns
from tests.unit.auth.signed import ADMINISTRATOR, ON, asking

from turbopump import Credentials, Producer, PushConsumer
from turbopump.auth.accounts import Accounts, User
from turbopump.auth.sealing import unseal, version_of
from turbopump.auth.server_access import FILE_NAME, ServerAccess, change_file
from turbopump.config.broker_config import BrokerConfig
from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import ConfigError, ResponseError, RouteNotFoundError
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.access import (
    AclInfo,
    CreateAcl,
    CreateUser,
    DeleteAcl,
    DeleteUser,
    GetAcl,
    GetUser,
    ListAcls,
    ListUsers,
    PolicyEntryInfo,
    PolicyInfo,
    UpdateUser,
    UserInfo,
)
from turbopump.protocol.requests.configuration import GetBrokerConfig
from turbopump.remoting.client import RemotingClient
from turbopump.testing.broker_in_loop import RunningBroker, running_broker

ANN = Credentials("ann", "ann's secret")


def acl(*entries: tuple[str, str], user: str = ANN.access_key, decision: str = "Allow") -> AclInfo:
    infos = [
        PolicyEntryInfo(resource=resource, actions=[action], decision=decision)
        for resource, action in entries
    ]
    return AclInfo(subject=f"User:{user}", policies=[PolicyInfo(entries=infos)])


async def make_ann(running: RunningBroker, client: RemotingClient, *may: tuple[str, str]) -> None:
    """Ann, who may do that, on both servers."""
    for address in (running.namesrv, running.broker_address):
        await client.call(address, CreateUser(username="ann"), UserInfo(password=ANN.secret_key))
        await client.call(address, CreateAcl(subject="User:ann"), acl(*may))


@in_loop
async def test_who_has_no_account_is_refused_and_who_has_one_may_what_a_policy_allows() -> None:
    async with running_broker(**ON) as running, asking() as admin:
        await running.create_topic("orders", credentials=ADMINISTRATOR)
        await make_ann(running, admin, ("Topic:orders", "Pub"))
        async with Producer(running.namesrv, credentials=ANN) as producer:
            sent = await producer.send("orders", b"a book")
            with pytest.raises(RouteNotFoundError, match="User:ann has no permission"):
                await producer.send("other", b"x")
        for credentials in (None, Credentials("ann", "no secret"), Credentials("bob", "x")):
            async with Producer(running.namesrv, credentials=credentials) as producer:
                with pytest.raises(RouteNotFoundError, match="access denied"):
                    await producer.send("orders", b"x")
        async with PushConsumer(
            running.namesrv, group="g", topic="orders", credentials=ADMINISTRATOR
        ) as consumer:
            (taken,) = await consumer.take(1)
            taken.done()
        assert (taken.body, taken.msg_id) == (b"a book", sent.msg_id)


@in_loop
async def test_users_and_policies_are_made_shown_changed_and_deleted_by_request() -> None:
    async with running_broker(**ON) as running, asking() as admin, asking(ANN) as ann:
        at = running.broker_address
        await make_ann(running, admin, ("Topic:orders", "Pub"), ("Cluster:*", "Get"))
        shown = fastjson.decode((await ann.exchange(at, GetUser(username="ann"))).body, UserInfo)
        assert shown == UserInfo(username="ann", user_type="Normal", user_status="enable")
        listed = (await ann.exchange(at, ListUsers(filter="n"))).body
        assert [one.username for one in fastjson.decode(listed, list[UserInfo])] == [
            "admin",
            "inner",
            "ann",
        ]
        assert b"secret" not in listed
        (policy,) = (
            fastjson.decode(
                (await ann.exchange(at, GetAcl(subject="User:ann"))).body, AclInfo
            ).policies
            or ()
        )
        assert [entry.resource for entry in policy.entries or ()] == ["Topic:orders", "Cluster:*"]
        assert (policy.policy_type, (policy.entries or [])[0].decision) == ("Custom", "Allow")
        found = (await ann.exchange(at, ListAcls(resource_filter="ord"))).body
        assert [one.subject for one in fastjson.decode(found, list[AclInfo])] == ["User:ann"]
        with pytest.raises(ResponseError, match="only for a Super user"):
            await ann.call(at, UpdateUser(username="ann"), UserInfo(user_type="Super"))
        await admin.call(at, DeleteAcl(subject="User:ann", resource="Topic:orders"))
        await admin.call(at, UpdateUser(username="ann"), UserInfo(user_status="disable"))
        with pytest.raises(ResponseError, match="access denied"):
            await ann.call(at, GetUser(username="ann"))
        await admin.call(at, DeleteUser(username="ann"))
        assert (await admin.exchange(at, GetUser(username="ann"))).body == b""
        with pytest.raises(ResponseError, match="there is no user 'User:ann'"):
            await admin.call(at, GetAcl(subject="User:ann"))
        refused = await admin.exchange(at, CreateUser(username="bob"), UserInfo())
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "turbopump auth export" in (refused.remark or "")


@in_loop
async def test_all_accounts_are_given_to_a_super_user_sealed_and_to_nobody_else() -> None:
    async with running_broker(**ON) as running, asking() as admin, asking(ANN) as ann:
        await make_ann(running, admin, ("Cluster:*", "All"), ("*", "All"))
        for at, access in (
            (running.broker_address, running.broker.access),
            (running.namesrv, running.name_server.access),
        ):
            assert access is not None
            asked = ListUsers(nonce="n")
            answer = await admin.exchange(at, asked)
            assert (answer.code, (answer.ext or {})["sealed"]) == (0, "true")
            assert not any(text in answer.body for text in (b"secret", b"ann", b"users"))
            content = unseal(answer.body, ADMINISTRATOR.secret_key, "n")
            assert Accounts.decode(content) == access.control.accounts
            known = version_of(content, ADMINISTRATOR.secret_key)
            same = await admin.exchange(at, ListUsers(nonce="m", known_version=known))
            assert unseal(same.body, ADMINISTRATOR.secret_key, "m") == b""
            refused = await ann.exchange(at, asked)
            assert refused.code == ResponseCode.NO_PERMISSION
            assert (await ann.exchange(at, ListUsers())).code == 0


def test_the_text_of_accounts_is_the_same_after_each_copy() -> None:
    entries = [
        PolicyEntryInfo(resource=resource, actions=actions, source_ips=sources, decision=decision)
        for resource, actions, sources, decision in (
            ("Topic:ü*", ["Sub", "Pub"], ["10.0.0.0/8", "::1"], "Deny"),
            ("*", ["All"], None, "Allow"),
            ("Group:g", ["Get", "List", "Update"], None, "Allow"),
        )
    ]
    policies = [PolicyInfo(policy_type=one, entries=entries) for one in ("Default", "Custom")]
    accounts = (
        Accounts()
        .with_new_user(UserInfo(username="ä b", password="pässword\t", user_status="disable"))
        .with_new_user(UserInfo(username="x", password="y", user_type="super"))
        .with_acl(AclInfo(subject="User:ä b", policies=policies))
    )
    copy = Accounts.decode(accounts.encode())
    assert (copy, copy.encode()) == (accounts, accounts.encode())


@in_loop
async def test_what_was_changed_is_in_a_file_that_its_owner_alone_can_read(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path, **ON) as running, asking() as admin:
        await make_ann(running, admin, ("Topic:orders", "Pub"))
    file = tmp_path / "config" / "auth" / FILE_NAME
    assert modes(file) == [0o600, 0o600]
    file.chmod(0o644)  # as one that somebody has made
    async with running_broker(directory=tmp_path, **ON) as running, asking(ANN) as ann:
        answer = await ann.exchange(running.broker_address, ListUsers())
        assert "has no permission to access Cluster:DefaultCluster" in (answer.remark or "")
        async with asking() as admin:
            await admin.call(running.broker_address, DeleteUser(username="ann"))
    assert modes(file) == [0o600, 0o600]


def modes(file: Path) -> list[int]:
    """Who may read a file, and what it was before."""
    return [stat.S_IMODE(one.stat().st_mode) for one in (file, file.with_name(f"{file.name}.bak"))]


@in_loop
async def test_what_somebody_writes_to_the_file_is_in_force_within_a_look(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    access = ServerAccess(BrokerConfig(**ON), tmp_path, SystemDisk(), returns(("c",)))
    access.open()
    change_file(SystemDisk(), file, lambda accounts: accounts.without_user("admin"))
    assert "admin" in access.control.accounts.users
    access.check_file()
    assert list(access.control.accounts.users) == ["inner"]
    file.write_bytes(b"{")
    access.check_file()
    assert list(access.control.accounts.users) == ["inner"]
    file.unlink()
    access.check_file()
    assert list(access.control.accounts.users) == ["inner"]


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "has mode" in line]


@in_loop
async def test_a_file_that_others_can_read_is_warned_of_once_at_the_start_and_when_it_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / FILE_NAME
    file.write_text('{"users": []}')
    file.chmod(0o644)
    access = ServerAccess(BrokerConfig(authentication_enabled=True), tmp_path, SystemDisk(), list)

    access.open()
    access.check_file()
    assert warned(caplog) == [
        f"{file} has mode 0644: other users can read or change its passwords; run chmod 600 {file}"
    ]
    for mode, count in ((0o600, 1), (0o640, 2), (0o640, 2), (0o600, 2), (0o400, 2), (0o640, 3)):
        file.chmod(mode)
        access.check_file()
        assert len(warned(caplog)) == count
    ann = UserInfo(username="ann", password=ANN.secret_key)
    await access.change(lambda accounts: accounts.with_new_user(ann))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@in_loop
async def test_a_file_that_makes_no_sense_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"user": []}')
    access = ServerAccess(BrokerConfig(**ON), tmp_path, SystemDisk(), returns(("c",)))
    with pytest.raises(ConfigError, match=f"{FILE_NAME}: not the JSON of an account file"):
        access.open()


@in_loop
async def test_a_user_who_is_there_is_not_changed_by_a_start(tmp_path: Path) -> None:
    for secret in ("first", "second"):
        text = json.dumps({"username": "admin", "password": secret})
        config = BrokerConfig(authentication_enabled=True, init_authentication_user=text)
        access = ServerAccess(config, tmp_path, SystemDisk(), returns(("c",)))
        access.open()
        assert access.control.accounts.users["admin"].password == "first"


@in_loop
async def test_the_accounts_of_4x_are_taken_over_at_a_start_if_they_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("yaml", reason="needs the extra turbopump[acl-import]")
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(
        "accounts:\n- accessKey: admin\n  secretKey: of 4.x\n"
        "- accessKey: old\n  secretKey: s3same\n  topicPerms: [T=PUB]\n"
    )
    config = BrokerConfig(migrate_auth_from_v1_enabled=True, **ON)
    for _ in range(2):
        access = ServerAccess(config, tmp_path, SystemDisk(), returns(("c",)))
        access.open()
        users, policies = access.control.accounts.users, access.control.accounts.policies
        assert users["admin"].password == ADMINISTRATOR.secret_key
        assert (users["old"].password, users["old"].is_super) == ("s3same", False)
        assert list(policies) == ["old"]


def test_no_secret_is_in_what_credentials_and_users_are_shown_as() -> None:
    user = User("ann", "s3same")
    assert "s3same" not in f"{Credentials('ann', 's3same')} {user} {Accounts({'ann': user})}"


@in_loop
async def test_where_authentication_is_off_nothing_is_asked() -> None:
    async with running_broker() as running:
        assert running.broker.parts.listening.router.authorise is None


@in_loop
async def test_the_vip_port_is_closed_to_strangers_too() -> None:
    port = free_ports(-2, 0, 1)
    vip = f"127.0.0.1:{port - 2}"
    async with running_broker(listen_port=port, **ON), asking(None) as stranger, asking() as admin:
        assert (await stranger.exchange(vip, GetBrokerConfig())).code == ResponseCode.NO_PERMISSION
        assert (await admin.exchange(vip, GetBrokerConfig())).code == ResponseCode.SUCCESS
