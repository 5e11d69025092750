"""Worlds for tests of ``Admin``: a running broker of ours, and an ``Admin`` that is connected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from turbopump.admin.admin import Admin
from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerConfig
from turbopump.testing import RunningBroker, running_broker
from turbopump.testing.broker_in_loop import PATIENT, SMALL_FILES

Story = Callable[[RunningBroker, Admin], Coroutine[Any, Any, Any]]


def with_admin(story: Story, **config: Any) -> None:
    """Run a story with a broker and an Admin: ``@in_loop(with_admin)``."""
    asyncio.run(_run(story, config))


async def _run(story: Story, config: dict[str, Any]) -> None:
    async with running_broker(**config) as broker, Admin(broker.namesrv) as admin:
        await story(broker, admin)


def with_two_brokers(story: Callable[[Admin], Coroutine[Any, Any, Any]]) -> None:
    """Run a story with the brokers ``broker-test`` and ``broker-two`` of one cluster."""

    async def run(broker: RunningBroker, admin: Admin) -> None:
        async with AsyncExitStack() as stack:
            second = Broker(
                BrokerConfig(
                    broker_name="broker-two",
                    namesrv_addr=broker.namesrv,
                    bind_address="127.0.0.1",
                    listen_port=0,
                    store_path_root_dir=str(broker.directory / "second"),
                    **SMALL_FILES,
                    **PATIENT,
                )
            )
            stack.push_async_callback(second.close)
            await second.start()
            await story(admin)

    with_admin(run)
