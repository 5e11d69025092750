"""The package's pytest plugin: the fixture `rocketmq`, a running name server and broker.

pytest loads this module in every test run of everyone who has Turbopump installed. It therefore
imports nothing of Turbopump until the fixture is used.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from turbopump.testing.broker_in_loop import BrokerThread

_SCOPES = ("function", "class", "module", "package", "session")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "rocketmq_scope",
        help=f"how long one broker of the fixture `rocketmq` lives: {', '.join(_SCOPES)}",
        default="function",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Checked here and not with the scope, where pytest turns a usage error into an internal error.
    scope = config.getini("rocketmq_scope")
    if scope not in _SCOPES:
        raise pytest.UsageError(
            f"rocketmq_scope is {scope!r}; expected one of {', '.join(_SCOPES)}"
        )


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    return config.getini("rocketmq_scope")


@pytest.fixture(scope=_scope)
def rocketmq() -> "Iterator[BrokerThread]":
    """A RocketMQ name server and broker on free ports of 127.0.0.1. They start empty and are
    removed after the test.

    `rocketmq.namesrv` is the address for producers and consumers. Also:
    `rocketmq.create_topic(name, queues)`, `rocketmq.broker_address`, `rocketmq.directory`. The pair
    runs in a thread, so synchronous and asyncio tests can use it.
    """
    from turbopump.testing import BrokerThread

    with BrokerThread() as running:
        yield running
