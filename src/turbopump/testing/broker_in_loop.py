"""A name server and a broker in the caller's own event loop, for as long as a `with` block lasts.

Its one rule: nothing is left afterwards: no port, no task, no file. It must not know pytest.
"""

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerConfig
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.namesrv.server import NameServer
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.client import RemotingClient

SMALL_FILES: dict[str, Any] = {
    "mapped_file_size_commit_log": 8 * 1024 * 1024,
    "mapped_file_size_consume_queue": 3_000 * 20,
    "mapper_file_size_batch_consume_queue": 3_000 * 46,
    "max_hash_slot_num": 1_000,
    "max_index_num": 4_000,
    "disk_free_space_min": 64 * 1024 * 1024,
}
"""Fields of BrokerConfig: a production broker allocates 1 GiB for its first message, and refuses
sends on a disk over 90 % full."""


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """What clients and tests want to know of a running pair."""

    namesrv: str
    """Address of the name server, `host:port`: what a producer or consumer is given."""
    broker_address: str
    """Address of the broker, `host:port`."""
    directory: Path
    """The broker's store directory."""
    broker: Broker
    name_server: NameServer

    async def create_topic(self, topic: str, queues: int = 1) -> None:
        """Create `topic` with so many queues (a send alone would create it with up to 8). Raises
        ResponseError.
        """
        client = RemotingClient()
        try:
            await client.call(
                self.broker_address,
                CreateTopic(topic=topic, read_queue_nums=queues, write_queue_nums=queues),
            )
        finally:
            await client.close()


@asynccontextmanager
async def running_broker(
    *, directory: Path | str | None = None, host: str = "127.0.0.1", **config: Any
) -> AsyncIterator[RunningBroker]:
    """Run a name server and a broker until the block ends.

    Both listen on free ports of `host`. The store is in `directory`, which is kept, or in a
    temporary one, which is not. `config` are fields of
    `turbopump.config.broker_config.BrokerConfig` (`flush_disk_type=...`); files are small unless
    they say otherwise. Ready in some tens of milliseconds. Raises ConfigError for a value that
    cannot be used.
    """
    async with AsyncExitStack() as stack:
        if directory is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="turbopump-test-"))
        name_server = NameServer(NamesrvConfig(bind_address=host, listen_port=0))
        stack.push_async_callback(name_server.close)
        bound = await name_server.start()
        namesrv = f"{bound[0]}:{bound[1]}"
        fields: dict[str, Any] = {
            "broker_name": "broker-test",
            "bind_address": host,
            "listen_port": 0,
            **SMALL_FILES,
            **config,
        }
        broker = Broker(
            BrokerConfig(namesrv_addr=namesrv, store_path_root_dir=str(directory), **fields)
        )
        stack.push_async_callback(broker.close)
        await broker.start()
        yield RunningBroker(namesrv, broker.address, Path(directory), broker, name_server)
