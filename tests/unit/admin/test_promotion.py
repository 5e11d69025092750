"""Checks before a slave becomes the master, by the answers of servers that a test makes up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop

from turbopump.admin.cluster import Servers
from turbopump.admin.promotion import (
    PromotionChecks,
    SlaveFile,
    Verdict,
    check_promotion,
    restart_broker,
)
from turbopump.errors import ClientError, ConfigError, ConnectError
from turbopump.protocol.request import Request
from turbopump.protocol.requests.namesrv import BrokerData, ClusterInfo, GetBrokerClusterInfo
from turbopump.protocol.requests.replication import HAClientRuntimeInfo, HARuntimeInfo

MASTER, SLAVE, OTHER_SLAVE = "master:1", "slave:1", "slave:2"
NAME_SERVERS = ["n:1", "n:2"]
NOW_MS = 1_000_000


def slave(log_end: int = 500, **state: Any) -> HARuntimeInfo:
    copied = {"copied_until": NOW_MS - 2_000} | state
    return HARuntimeInfo(ha_client_runtime_info=HAClientRuntimeInfo(max_offset=log_end, **copied))


def master(log_end: int, in_sync: int) -> HARuntimeInfo:
    return HARuntimeInfo(
        master=True, master_commit_log_max_offset=log_end, in_sync_slave_nums=in_sync
    )


class MadeUpServers(Servers):
    """Servers whose answers a test gives: the brokers that each name server lists, and the
    replication of each broker. Servers that are not given do not answer."""

    def __init__(
        self, listed: Mapping[str, Mapping[int, str]], brokers: Mapping[str, HARuntimeInfo]
    ) -> None:
        super().__init__(NAME_SERVERS)
        self._listed = listed
        self._brokers = brokers

    async def call(self, address: str, request: Request[Any], *_: Any, **__: Any) -> Any:
        if isinstance(request, GetBrokerClusterInfo) and address in self._listed:
            data = BrokerData(
                cluster="c", broker_name="a", broker_addrs=dict(self._listed[address])
            )
            return ClusterInfo(broker_addr_table={"a": data}, cluster_addr_table={"c": ("a",)})
        if address in self._brokers:
            return self._brokers[address]
        raise ConnectError(f"cannot connect to {address}")


@pytest.fixture
def file(tmp_path: Path) -> SlaveFile:
    path = tmp_path / "a-s.conf"
    path.write_text("brokerName=a\nbrokerRole=SLAVE\nbrokerId=1\nnamesrvAddr=n:1;n:2\n")
    return SlaveFile.read(path, "a")


def everywhere(brokers: Mapping[int, str]) -> dict[str, Mapping[int, str]]:
    return dict.fromkeys(NAME_SERVERS, brokers)


def found(checks: PromotionChecks, name: str) -> tuple[Verdict, str]:
    (check,) = [one for one in checks.checks if one.name == name]
    assert (check.fix is None) == (check.verdict is Verdict.OK)
    return check.verdict, check.finding


@in_loop
async def test_a_slave_that_copied_until_the_end_may_become_the_master(file: SlaveFile) -> None:
    servers = MadeUpServers(everywhere({1: SLAVE}), {SLAVE: slave()})
    checks = await check_promotion(servers, file, NOW_MS)
    assert (checks.verdict, checks.address, checks.log_end) == (Verdict.OK, SLAVE, 500)
    assert found(checks, "copy") == (Verdict.OK, "it copied its master until 2 s ago")


@pytest.mark.parametrize(
    ("listed", "brokers", "name", "expected"),
    [
        (everywhere({0: MASTER, 1: SLAVE}), {MASTER: master(500, 1)}, "old master", "wrong"),
        (everywhere({0: MASTER, 1: SLAVE}), {}, "old master", "risk"),
        (everywhere({0: MASTER, 1: SLAVE}), {MASTER: master(500, 1)}, "copy", "ok"),
        (everywhere({0: MASTER, 1: SLAVE}), {MASTER: master(700, 0)}, "copy", "risk"),
        ({"n:1": {1: SLAVE}, "n:2": {0: MASTER, 1: SLAVE}}, {}, "old master", "risk"),
        ({"n:1": {1: SLAVE}}, {}, "name servers", "risk"),
        (everywhere({}), {}, "slave", "wrong"),
        (everywhere({1: "gone:1"}), {}, "slave", "wrong"),
        (everywhere({1: SLAVE}), {SLAVE: master(500, 0)}, "slave", "wrong"),
        (everywhere({1: SLAVE}), {SLAVE: slave(refusal="another log")}, "copy", "risk"),
        (everywhere({1: SLAVE}), {SLAVE: slave(copied_until=None)}, "copy", "risk"),
        (everywhere({1: SLAVE, 2: OTHER_SLAVE}), {OTHER_SLAVE: slave(501)}, "other slaves", "risk"),
        (everywhere({1: SLAVE, 2: OTHER_SLAVE}), {OTHER_SLAVE: slave(500)}, "other slaves", "ok"),
        (everywhere({1: SLAVE, 2: OTHER_SLAVE}), {}, "other slaves", "risk"),
    ],
)
@in_loop
async def test_what_servers_answer_decides(
    file: SlaveFile,
    listed: Mapping[str, Mapping[int, str]],
    brokers: Mapping[str, HARuntimeInfo],
    name: str,
    expected: str,
) -> None:
    checks = await check_promotion(MadeUpServers(listed, {SLAVE: slave(), **brokers}), file, NOW_MS)
    assert found(checks, name)[0] == expected


@in_loop
async def test_accounts_that_nobody_may_see_are_a_risk(tmp_path: Path) -> None:
    path = tmp_path / "a-s.conf"
    path.write_text(
        "brokerName=a\nbrokerRole=SLAVE\nbrokerId=1\nnamesrvAddr=n:1\nauthenticationEnabled=true\n"
    )
    servers = MadeUpServers(everywhere({1: SLAVE}), {SLAVE: slave()})
    checks = await check_promotion(servers, SlaveFile.read(path, "a"), NOW_MS)
    assert found(checks, "accounts")[0] is Verdict.RISK


@pytest.mark.parametrize(
    ("line", "role"),
    [("", None), ("inSyncReplicas=1\n", "ASYNC_MASTER"), ("inSyncReplicas=2\n", "SYNC_MASTER")],
)
def test_the_role_follows_from_in_sync_replicas(
    file: SlaveFile, line: str, role: str | None
) -> None:
    file.path.write_text(file.path.read_text() + line)
    assert SlaveFile.read(file.path, "a").role() == role


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.conf cannot be read: No such file"):
        SlaveFile.read(tmp_path / "none.conf", "a")


def test_the_file_keeps_its_other_lines_and_the_old_file_stays(file: SlaveFile) -> None:
    before = "# mine\nbrokerName=a\nbrokerRole=SLAVE\nbrokerId=1\nnamesrvAddr=n:1\n"
    file.path.write_text(before)
    copy = SlaveFile.read(file.path, "a").write("ASYNC_MASTER")
    assert copy.read_text() == before
    assert file.path.read_text() == before.replace("SLAVE", "ASYNC_MASTER").replace(
        "brokerId=1", "brokerId=0"
    )


@pytest.mark.parametrize(
    ("command", "told"),
    [("false", "ended with exit code 1"), ("no-such-program x", "cannot run: No such file")],
)
@in_loop
async def test_a_restart_that_fails_is_an_error(command: str, told: str) -> None:
    with pytest.raises(ClientError, match=told):
        await restart_broker(command)
