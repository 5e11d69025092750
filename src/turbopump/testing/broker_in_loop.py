"""A name server and a broker in the caller's own event loop, for the duration of a `with` block.

No port, task or file remains afterwards. Pytest is unknown here.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.broker.broker import Broker
from turbopump.config.access import AccessConfig
from turbopump.config.broker_config import BrokerConfig
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.namesrv.server import NameServer
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.client import RemotingClient

SMALL_FILES: dict[str, Any] = {
    "mapped_file_size_commit_log": 8 * 1024 * 1024,
    "mapped_file_size_consume_queue": 3_000 * 20,
    "max_hash_slot_num": 1_000,
    "max_index_num": 4_000,
    "disk_free_space_min": 64 * 1024 * 1024,
}
"""Fields of BrokerConfig for small disks. A production broker allocates 1 GiB for its first
message, and refuses sends on a disk over 90 % full."""

PATIENT: dict[str, Any] = {
    "wait_time_mills_in_send_queue": 60_000,
    "os_page_cache_busy_time_out_mills": 60_000,
}
"""Fields of BrokerConfig for busy machines: no send is refused because the machine is busy."""

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 30.0

_SHARED: Final = frozenset(field.name for field in fields(AccessConfig))
"""Access settings that both servers get."""


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """Addresses and objects of a running pair, for clients and tests."""

    namesrv: str
    """Address of the name server, `host:port`, for producers and consumers."""
    broker_address: str
    """Address of the broker, `host:port`."""
    directory: Path
    """Store directory of the broker."""
    broker: Broker
    name_server: NameServer

    async def create_topic(
        self, topic: str, queues: int = 1, credentials: Credentials | None = None
    ) -> None:
        """Create `topic` with this number of queues (a send would create it with up to 8). Raise
        ResponseError if the broker refuses."""
        signer = None if credentials is None else RequestSigner(credentials)
        client = RemotingClient(signer=signer, connect_timeout=START_SECONDS_MAX)
        try:
            wanted = CreateTopic(topic=topic, read_queue_nums=queues, write_queue_nums=queues)
            await client.call(self.broker_address, wanted, timeout=START_SECONDS_MAX)
        finally:
            await client.close()


@asynccontextmanager
async def running_broker(
    *, directory: Path | str | None = None, host: str = "127.0.0.1", **config: Any
) -> AsyncIterator[RunningBroker]:
    """Run a name server and a broker until the block ends. They are ready in some tens of
    milliseconds.

    Both listen on free ports of `host`. The store is in `directory`, which is kept; without one it
    is in a temporary directory, which is deleted. `config` are fields of
    `turbopump.config.broker_config.BrokerConfig` (`flush_disk_type=...`). By default files are
    small, and no send is refused because the machine is busy. Raise ConfigError for an invalid
    value.
    """
    async with AsyncExitStack() as stack:
        if directory is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="turbopump-test-"))
        shared = {name: config[name] for name in config if name in _SHARED}
        shared["kv_config_path"] = str(Path(directory) / "namesrv" / "kvConfig.json")
        name_server = NameServer(NamesrvConfig(bind_address=host, listen_port=0, **shared))
        stack.push_async_callback(name_server.close)
        bound = await name_server.start()
        namesrv = f"{bound[0]}:{bound[1]}"
        given: dict[str, Any] = {"broker_name": "broker-test", "bind_address": host}
        given |= {"listen_port": 0, **SMALL_FILES, **PATIENT, **config}
        broker = Broker(
            BrokerConfig(namesrv_addr=namesrv, store_path_root_dir=str(directory), **given)
        )
        stack.push_async_callback(broker.close)
        await broker.start()
        yield RunningBroker(namesrv, broker.address, Path(directory), broker, name_server)


# A running broker for code without an event loop, in a thread with its own loop. `start` returns
# when clients can be served, `stop` when everything is closed; both raise the error of a failure.
T = TypeVar("T")


class BrokerThread:
    """A name server and a broker in a thread. The options are those of `running_broker`.

        with BrokerThread() as rocketmq:
            print(rocketmq.namesrv)

    Raise TimeoutError if the start or the stop takes more than 30 s.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._running: RunningBroker | None = None
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        # A daemon, so that a broker that hangs cannot keep the test run from ending.
        self._thread = threading.Thread(target=self._run, name="turbopump-broker", daemon=True)

    def start(self) -> BrokerThread:
        self._thread.start()
        if not self._ready.wait(START_SECONDS_MAX):
            raise TimeoutError(f"the broker was not ready after {START_SECONDS_MAX:.0f} s")
        if self._running is None:
            self._join()
        return self

    def stop(self) -> None:
        """Stop the servers. A second call has no effect. If the servers failed while running or
        stopping, raise their error."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._join()

    @property
    def namesrv(self) -> str:
        """Address of the name server, `host:port`, for producers and consumers."""
        return self.running.namesrv

    @property
    def broker_address(self) -> str:
        """Address of the broker, `host:port`."""
        return self.running.broker_address

    @property
    def directory(self) -> Path:
        """Store directory of the broker."""
        return self.running.directory

    def create_topic(self, topic: str, queues: int = 1) -> None:
        """Create `topic` with this number of queues (a send would create it with up to 8). Raise
        ResponseError if the broker refuses."""
        self.run(self.running.create_topic(topic, queues))

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 30.0) -> T:
        """Run a coroutine on the broker's loop and wait at most `timeout` seconds for its
        result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    @property
    def running(self) -> RunningBroker:
        assert self._running is not None, "call start() first, or use it in a `with`"
        return self._running

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException as failure:
            self._failure = failure
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        async with running_broker(**self._options) as running:
            self._running = running
            self._ready.set()
            await self._stop.wait()

    def _join(self) -> None:
        self._thread.join(STOP_SECONDS_MAX)
        if self._thread.is_alive():
            raise TimeoutError(f"the broker did not stop within {STOP_SECONDS_MAX:.0f} s")
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def __enter__(self) -> BrokerThread:
        return self.start()

    def __exit__(self, *_failure: object) -> None:
        self.stop()
