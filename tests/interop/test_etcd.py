"""Decisions of our controllers in three real members of Debian's etcd.

tests/unit/controller/test_etcd_decisions.py tells the same stories, and more, in virtual time.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.interop.etcd_members import EtcdMembers, etcd_members
from tests.interop.tools import skipping_without_tools
from tests.loops import in_loop
from tests.unit.remoting.certificates import Pair
from tests.waits import until, until_logged

from turbopump.clock import SystemClock
from turbopump.config.etcd import EtcdConfig
from turbopump.config.setting import build
from turbopump.controller.decisions import NotLeaderError
from turbopump.controller.etcd_client import EtcdClient
from turbopump.controller.etcd_decisions import EtcdDecisions, attempt_s
from turbopump.controller.groups import Group

DECISIONS = 100
B64_FROM, B64_TO = "dHVyYm9wdW1wLw==", "dHVyYm9wdW1wMA=="
"""``turbopump/`` and ``turbopump0``, the first key behind all that begin so."""


def group(epoch: int) -> Group:
    return Group(cluster_name="c", broker_name="broker-a", master_epoch=epoch)


def decisions_in(members: EtcdMembers, **more: str) -> EtcdDecisions:
    etcd = build(EtcdConfig, members.settings | more, {}).etcd
    assert etcd is not None
    client = EtcdClient(etcd, attempt_s(etcd.lease_s))
    return EtcdDecisions(client, "DefaultControllerGroup", etcd.lease_s, SystemClock())


async def leads(decisions: EtcdDecisions) -> dict[str, Group]:
    """What a controller finds when it leads."""
    await until(lambda: decisions.term)
    return await decisions.load()


@in_loop
async def test_a_member_that_dies_costs_no_decision(tmp_path: Path, summary: list[str]) -> None:
    with skipping_without_tools():
        async with etcd_members(tmp_path / "etcd") as members:
            one, two = decisions_in(members), decisions_in(members)
            await one.open("127.0.0.1:1", int)
            assert await leads(one) == {}
            await two.open("127.0.0.1:2", int)
            slowest = 0.0
            old = None
            for epoch in range(1, DECISIONS + 1):
                if epoch == DECISIONS // 2:
                    members.kill(members.leading())
                began = time.monotonic()
                await one.replace("broker-a", old, group(epoch))
                slowest = max(slowest, time.monotonic() - began)
                old = group(epoch)
            summary.append(
                f"etcd: {DECISIONS} decisions, the slowest {slowest * 1000:.0f} ms while the "
                "leading member was killed"
            )
            await one.close()

            assert await leads(two) == {"broker-a": group(DECISIONS)}
            await two.close()


@in_loop
async def test_without_a_majority_nothing_is_decided_until_it_is_back(tmp_path: Path) -> None:
    with skipping_without_tools():
        async with etcd_members(tmp_path / "etcd") as members:
            one = decisions_in(members)
            await one.open("127.0.0.1:1", int)
            await leads(one)
            await one.replace("broker-a", None, group(1))
            members.kill(0)
            members.kill(1)
            with pytest.raises(NotLeaderError):
                await one.replace("broker-a", group(1), group(2))
            assert one.leader is None
            members.start(0)

            # Its outcome was unknown: the member that was left may have executed it now.
            found = (await leads(one))["broker-a"]
            assert found in (group(1), group(2))
            await one.replace("broker-a", found, group(3))
            assert await one.load() == {"broker-a": group(3)}
            await one.close()


@in_loop
async def test_members_that_ask_for_certificates(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "etcd")
    with skipping_without_tools():
        async with etcd_members(tmp_path / "etcd", pair, client_certificates=True) as members:
            one = decisions_in(members)
            await one.open("127.0.0.1:1", int)

            assert await leads(one) == {}
            await one.close()


@in_loop
async def test_members_with_tls_and_a_user_that_has_few_rights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with skipping_without_tools():
        async with etcd_members(tmp_path / "etcd", Pair(tmp_path, "etcd")) as members:
            members.ask(0, "auth/user/add", name="root", password="r")
            members.ask(0, "auth/role/add", name="root")
            members.ask(0, "auth/user/grant", user="root", role="root")
            members.ask(0, "auth/user/add", name="turbopump", password="t")
            members.ask(0, "auth/role/add", name="controllers")
            permission = {"permType": "READWRITE", "key": B64_FROM, "range_end": B64_TO}
            members.ask(0, "auth/role/grant", name="controllers", perm=permission)
            members.ask(0, "auth/user/grant", user="turbopump", role="controllers")
            members.ask(0, "auth/enable")
            one = decisions_in(members, etcdUser="turbopump", etcdPassword="t")
            await one.open("127.0.0.1:1", int)
            await leads(one)
            await one.replace("broker-a", None, group(1))
            stranger = decisions_in(members)
            await stranger.open("127.0.0.1:2", int)
            await until_logged(caplog, "user name is empty")

            assert stranger.leader is None
            assert await one.load() == {"broker-a": group(1)}
            await stranger.close()
            await one.close()
