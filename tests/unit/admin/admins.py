"""Worlds for tests of ``Admin``: a running broker of ours, and an ``Admin`` that is connected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from turbopump.admin.admin import Admin
from turbopump.testing import RunningBroker, running_broker

Story = Callable[[RunningBroker, Admin], Coroutine[Any, Any, Any]]


def with_admin(story: Story, **config: Any) -> None:
    """Run a story with a broker and an Admin: ``@in_loop(with_admin)``."""
    asyncio.run(_run(story, config))


async def _run(story: Story, config: dict[str, Any]) -> None:
    async with running_broker(**config) as broker, Admin(broker.namesrv) as admin:
        await story(broker, admin)
