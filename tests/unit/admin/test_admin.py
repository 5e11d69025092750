"""``Admin`` as a whole: its reference page, its blocking face, its errors."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from pathlib import Path

import pytest
from tests.forks import in_a_fork
from tests.loops import in_loop
from tests.unit.admin.admin_page import (
    COMMANDS,
    MQ_ADMIN_EXT,
    SAME_AS,
    WITHOUT,
    java_of,
    operations,
    page,
    parts,
)
from tests.unit.auth.over_tls import over_tls
from tests.unit.auth.signed import ADMINISTRATOR
from tests.unit.cli.named_commands import named_commands
from tests.unit.remoting.certificates import Pair

import turbopump
from turbopump import (
    ClientTls,
    ConfigError,
    ConnectError,
    NotStartedError,
    RemotingError,
    ResponseError,
    blocking,
)
from turbopump.admin.admin import Admin
from turbopump.protocol.codes import ResponseCode
from turbopump.testing import BrokerThread, running_broker

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "admin.md"


def test_the_page_has_every_operation() -> None:
    assert PAGE.read_text("utf-8") == page(), (
        "docs/reference/admin.md is stale: python -m tests.unit.admin.admin_page > "
        "docs/reference/admin.md"
    )
    assert len(list(operations())) > 70


def test_every_command_on_the_page_exists() -> None:
    assert set(COMMANDS) <= {f"{subject}.{name}" for subject, name, _ in operations()}
    assert {command for command in COMMANDS.values() if command not in named_commands()} == set()


def test_every_operation_of_apache_s_class_has_a_method_or_a_reason() -> None:
    served = {name for _, _, method in operations() for name in java_of(method)}
    missing = MQ_ADMIN_EXT - served - WITHOUT.keys()
    assert {name for name in missing if SAME_AS.get(name) not in served} == {
        name
        for name in missing
        if name.endswith("Concurrent") and name.removesuffix("Concurrent") in served
    }
    assert not served & WITHOUT.keys()
    assert len(MQ_ADMIN_EXT) > 100


@pytest.mark.parametrize("subject", sorted(parts()))
def test_both_faces_have_the_same_operations(subject: str) -> None:
    face = getattr(blocking.Admin("127.0.0.1:1"), subject)
    assert inspect.signature(blocking.Admin) == inspect.signature(Admin)
    for owner, name, method in operations():
        if owner == subject and inspect.iscoroutinefunction(method):
            mine = getattr(type(face), name)
            assert str(inspect.signature(mine)) == str(inspect.signature(method)), name
        elif owner == subject:
            assert hasattr(type(face), name)


def test_an_operation_without_a_loop() -> None:
    with BrokerThread() as broker, blocking.Admin(broker.namesrv) as admin:
        (made,) = admin.topics.create("orders", read_queues=2).values()
        assert made.read_queue_nums == 2
        assert admin.topics.names() == ["orders"]
        assert admin.groups.lag("billing").messages == 0
    with pytest.raises(NotStartedError, match="closed"):
        admin.topics.names()


@in_loop
async def test_servers_that_cannot_be_asked_are_named() -> None:
    with pytest.raises(ConfigError):
        Admin("nowhere")
    admin = turbopump.Admin(["127.0.0.1:1", "127.0.0.1:2"])
    assert set(parts()) <= set(dir(admin))
    assert not hasattr(admin, "topic")
    with pytest.raises(NotStartedError, match=r"`async with Admin\(...\)` or `await admin.start"):
        await admin.topics.names()
    async with admin:
        with pytest.raises(RemotingError, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2"):
            await admin.topics.names()
        with pytest.raises(ConnectError, match=r"127\.0\.0\.1:2000"):
            await admin.topics.settings("orders", broker="127.0.0.1:2000")
    with pytest.raises(NotStartedError, match="this Admin is closed"):
        await admin.topics.names()


@pytest.mark.skipif(
    not hasattr(os, "fork") or sys.platform == "darwin",
    reason="needs a fork that is safe with threads",
)
def test_a_blocking_admin_works_in_a_fork_too() -> None:
    with BrokerThread() as broker, blocking.Admin(broker.namesrv) as admin:
        admin.topics.create("orders")
        topics = admin.topics  # also a subject that was kept from before
        assert in_a_fork(lambda: " ".join(topics.names())) == "orders"
        assert topics.names() == ["orders"]


@in_loop
async def test_an_admin_belongs_to_the_loop_that_started_it() -> None:
    async with running_broker() as broker, Admin(broker.namesrv) as admin:
        await admin.topics.names()
        with pytest.raises(NotStartedError, match="on another event loop"):
            await asyncio.to_thread(asyncio.run, admin.topics.names())


@in_loop
async def test_credentials_and_tls_are_those_of_every_request(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    tls = ClientTls(trust=pair.certificate)
    async with running_broker(**over_tls(pair)) as broker:
        async with Admin(broker.namesrv, credentials=ADMINISTRATOR, tls=tls) as admin:
            await admin.topics.create("orders", read_queues=1, write_queues=1)
            (queue,) = await admin.messages.queues("orders")  # over the finder's connections
            assert await admin.offsets.bounds(queue) == (0, 0)
        async with Admin(broker.namesrv, tls=tls) as stranger:
            with pytest.raises(ResponseError) as refused:
                await stranger.topics.settings("orders", broker=broker.broker_address)
            assert refused.value.code == ResponseCode.NO_PERMISSION
        async with Admin(broker.namesrv, credentials=ADMINISTRATOR) as plain:
            with pytest.raises(RemotingError):
                await plain.topics.names()
