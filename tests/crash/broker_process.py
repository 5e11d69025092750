"""A broker in a process of its own, to be killed, and the name server in ours, which survives it.

Its one rule: the broker comes back on the same port with the same directory. It must not know what
is sent.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from tests.crash.forked_commands import ForkedCommand
from tests.ports import free_ports

import turbopump
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.namesrv.server import NameServer
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.client import RemotingClient

READY_SECONDS_MAX = 180.0
"""It is one second where nothing else runs; a machine that is loaded or frozen may take its
time."""
CALL_SECONDS_MAX = 60.0
NAME = "broker-crash"


async def kill_process(process: asyncio.subprocess.Process | ForkedCommand | None) -> None:
    """kill -9, and wait until it is gone."""
    if process is not None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


class BrokerProcess:
    """`settings` are Apache's keys; `directory` is the store's, `home` where its configuration and
    log go (both survive).

    `script`: a Python program that runs the command line instead of `-m turbopump`. `preload`:
    LD_PRELOAD of the process. `namesrv`: the name server of another one, to be joined. `forked`:
    start without the time of the imports.
    """

    def __init__(
        self,
        home: Path,
        directory: Path,
        settings: dict[str, object],
        *,
        script: Path | None = None,
        preload: str | None = None,
        namesrv: str = "",
        forked: bool = False,
    ) -> None:
        self.home = home
        self.directory = directory
        self._settings = settings
        self._script = script
        self._preload = preload
        self._forked = forked
        self._process: asyncio.subprocess.Process | ForkedCommand | None = None
        self._name_server: NameServer | None = None
        self.namesrv = namesrv
        self.port = 0
        self.start_seconds: list[float] = []
        """From the start of the process to the line `ready`, for every start that was waited
        for."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.home / "broker.log"

    async def __aenter__(self) -> "BrokerProcess":
        if not self.namesrv:
            self._name_server = NameServer(NamesrvConfig(bind_address="127.0.0.1", listen_port=0))
            bound = await self._name_server.start()
            self.namesrv = f"{bound[0]}:{bound[1]}"
        self.port = free_ports(-2, 0)  # VIP, listen
        lines = {
            "brokerName": NAME,
            "bindAddress": "127.0.0.1",
            "listenPort": self.port,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": self.directory,
            "messageIndexEnable": "true",
            "enabledAppendPropCRC": "true",
            "diskFreeSpaceMin": 64 * 1024 * 1024,
            **PATIENT,
            **self._settings,
        }
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "broker.conf").write_text(
            "".join(f"{key}={value}\n" for key, value in lines.items())
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        if self._name_server is not None:
            await self._name_server.close()

    async def spawn(self) -> None:
        """Start the process; do not wait until it is ready."""
        assert self._process is None
        if self._forked:
            arguments = ("broker", "-c", str(self.home / "broker.conf"))
            self._process = await ForkedCommand.start(arguments, log=self.log, home=self.home)
            return
        environment = dict(os.environ)
        environment["PYTHONPATH"] = str(Path(turbopump.__file__).parent.parent)
        if self._preload:
            environment["LD_PRELOAD"] = self._preload
        what = [str(self._script)] if self._script else ["-m", "turbopump"]
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *what,
                "broker",
                "-c",
                str(self.home / "broker.conf"),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=self.home,
            )

    async def start(self) -> float:
        """Start the process and wait until it says that it is ready; the seconds that took."""
        begun = time.monotonic()
        await self.spawn()
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(READY_SECONDS_MAX):
            while line := await self._process.stdout.readline():
                if line.startswith(b"ready "):
                    self.start_seconds.append(time.monotonic() - begun)
                    return self.start_seconds[-1]
        status = await self._process.wait()
        self._process = None
        raise AssertionError(f"the broker did not start (status {status}):\n{self.log_tail()}")

    async def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        process, self._process = self._process, None
        await kill_process(process)

    async def stop(self) -> None:
        """A clean stop."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            await process.communicate()

    async def wait(self, timeout: float) -> int:
        """Wait until the process has ended by itself; its status (negative: the signal that ended
        it)."""
        process = self._process
        assert process is not None
        async with asyncio.timeout(timeout):
            await process.communicate()
        self._process = None
        assert process.returncode is not None
        return process.returncode

    async def create_topic(self, topic: str, queues: int) -> None:
        """Until it is on the broker's disk, which other tests may keep busy."""
        client = RemotingClient()
        wanted = CreateTopic(topic=topic, read_queue_nums=queues, write_queue_nums=queues)
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                while (await client.exchange(self.address, wanted, timeout=CALL_SECONDS_MAX)).code:
                    pass
        finally:
            await client.close()

    def log_tail(self, size: int = 4000) -> str:
        return self.log.read_bytes()[-size:].decode(errors="replace") if self.log.exists() else ""


PATIENT: dict[str, object] = {
    "waitTimeMillsInSendQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 60_000,
}
"""A machine under load refuses no send for having waited."""
SETTINGS: dict[str, object] = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": 16 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 30_000 * 20,
    "maxMessageSize": 1024 * 1024,
}
