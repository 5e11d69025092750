"""A running broker for code without an event loop: it lives on a loop of its own, in a thread of
its own.

Its one rule: `start` returns when clients can be served, `stop` when nothing is left; a failure of
either comes out there. It must not know pytest.
"""

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from turbopump.testing.broker_in_loop import RunningBroker, running_broker

T = TypeVar("T")

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 30.0


class BrokerThread:
    """A name server and a broker in a thread; options are those of `running_broker`.

        with BrokerThread() as rocketmq:
            print(rocketmq.namesrv)

    Raises TimeoutError if they neither start nor stop within 30 s.
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

    def start(self) -> "BrokerThread":
        self._thread.start()
        if not self._ready.wait(START_SECONDS_MAX):
            raise TimeoutError(f"the broker was not ready after {START_SECONDS_MAX:.0f} s")
        if self._running is None:
            self._join()
        return self

    def stop(self) -> None:
        """May be called twice. Raises what went wrong while it ran or closed, if anything did."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._join()

    @property
    def namesrv(self) -> str:
        """Address of the name server, `host:port`: what a producer or consumer is given."""
        return self._facts.namesrv

    @property
    def broker_address(self) -> str:
        """Address of the broker, `host:port`."""
        return self._facts.broker_address

    @property
    def directory(self) -> Path:
        """The broker's store directory."""
        return self._facts.directory

    def create_topic(self, topic: str, queues: int = 1) -> None:
        """Create `topic` with so many queues (a send alone would create it with up to 8). Raises
        ResponseError.
        """
        self.run(self._facts.create_topic(topic, queues))

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 30.0) -> T:
        """Run a coroutine on the broker's loop and wait for it, at most `timeout` seconds."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    @property
    def _facts(self) -> RunningBroker:
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

    def __enter__(self) -> "BrokerThread":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
