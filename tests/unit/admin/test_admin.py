"""``Admin`` as a whole: its reference page, its blocking face, its errors."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
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
from tests.unit.cli.test_entry import named_commands

import turbopump
from turbopump import ConfigError, ConnectError, NotStartedError, RemotingError, blocking
from turbopump.admin.admin import Admin
from turbopump.testing import BrokerThread

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
    with pytest.raises(NotStartedError, match=r"`async with Admin\(...\)` or `await admin.start"):
        await admin.topics.names()
    async with admin:
        with pytest.raises(RemotingError, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2"):
            await admin.topics.names()
        with pytest.raises(ConnectError, match=r"127\.0\.0\.1:2000"):
            await admin.topics.settings("orders", broker="127.0.0.1:2000")
    with pytest.raises(NotStartedError, match="this Admin is closed"):
        await admin.topics.names()
