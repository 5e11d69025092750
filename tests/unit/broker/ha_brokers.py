"""Brokers on real sockets, masters and slaves, with access control or without."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.unit.broker.talking import SMALL

from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerConfig, BrokerRole


def user(secret: str) -> dict[str, Any]:
    """Access control, and the account of the cluster's brokers."""
    account = json.dumps({"accessKey": "broker", "secretKey": secret})
    return {"authentication_enabled": True, "inner_client_authentication_credentials": account}


@asynccontextmanager
async def running(directory: Path, **config: Any) -> AsyncIterator[Broker]:
    broker = Broker(BrokerConfig(**{**SMALL, "store_path_root_dir": str(directory), **config}))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()


@asynccontextmanager
async def slave_of(master: Broker, directory: Path, **config: Any) -> AsyncIterator[Broker]:
    role = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}
    address = {"ha_master_address": master.parts.listening.ha_address}
    async with running(directory, **{**role, **address, **config}) as slave:
        yield slave
