"""One store directory, and two brokers that take turns with it: Apache's and ours.

The one rule: when a turn returns, its broker has ended, and no error was logged by ours. What is
done in a turn is the caller's: an async function that is given the address of a name server.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from tests.interop.apache import LOOPBACK, ApacheCluster, properties_text
from tests.interop.our_servers import turbopump_broker

Work = Callable[[str], Coroutine[Any, Any, None]]
Who = Literal["ours", "apache"]
SMALL_FILES: dict[str, str | int | bool] = {
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxMessageSize": 1 << 20,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "diskFreeSpaceMin": 64 << 20,  # ours alone: judge this and not the host's percentage
}


def the_other(who: Who) -> Who:
    return "apache" if who == "ours" else "ours"


class SharedDirectory:
    """Leaving it kills what still runs. ``killed`` and ``ever_killed``: how the last turn ended,
    and whether any ended by SIGKILL."""

    def __init__(
        self,
        version: str,
        directory: Path,
        settings: Mapping[str, str | int | bool],
        *,
        only_ours: Mapping[str, str | int | bool] | None = None,
        host: str = LOOPBACK,
    ) -> None:
        """``settings``: lines of broker.conf in Apache's keys, for both, ``only_ours`` for ours
        alone; ``host``: of ApacheCluster."""
        self.cluster = ApacheCluster(
            version, directory=directory / "apache", heap="384m", broker_config=settings, host=host
        )
        self.cluster.write_configuration()
        self.killed = self.ever_killed = False
        self._directory = directory
        self._turns = 0
        self._conf = directory / "ours.conf"
        for_both = (self.cluster.directory / "conf" / "broker.conf").read_text()
        self._conf.write_text(for_both + properties_text(only_ours or {}))

    def __enter__(self) -> SharedDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cluster.kill()

    def turn(self, who: Who, work: Work, end: signal.Signals) -> None:
        """Start that broker on the directory, do the work, and end the broker by ``end``: SIGTERM
        or SIGKILL."""
        if who == "ours":
            self._our_turn(work, end)
        else:
            self._apaches_turn(work, end)
        self.killed = end is signal.SIGKILL
        self.ever_killed |= self.killed

    def _our_turn(self, work: Work, end: signal.Signals) -> None:
        self._turns += 1
        with turbopump_broker(self._directory / f"ours-{self._turns}", self._conf, end) as servers:
            asyncio.run(work(servers.namesrv))
        assert "Traceback" not in servers.log(), servers.log()[-3000:]
        assert " ERROR " not in servers.log(), servers.log()[-3000:]

    def _apaches_turn(self, work: Work, end: signal.Signals) -> None:
        if self.cluster.namesrv_runs:
            self.cluster.start_broker()
        else:
            self.cluster.start()
        asyncio.run(work(self.cluster.namesrv))
        if end is signal.SIGTERM:
            self.cluster.stop_broker()
        else:
            self.cluster.kill_broker()
