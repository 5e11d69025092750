"""A controller and three replicas, each a process of its own, and the network between them.

Each replica advertises an address of loopback of its own, where a proxy of ours passes connections
on, and it reaches the controller and the name server through proxies of its own. So a replica can
be cut off while its process runs. The one rule: nobody is asked who the master is but the
controller. It must not know what is sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final, Self

from tests.crash.broker_process import READY_SECONDS_MAX, SETTINGS, BrokerProcess, kill_process
from tests.crash.forked_commands import ForkedCommand
from tests.crash.power import Ext4
from tests.ports import free_ports

from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.errors import TurbopumpError
from turbopump.namesrv.server import NameServer
from turbopump.protocol import fastjson
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests.controller import GetReplicaInfo, MasterReply, SyncStateSet
from turbopump.remoting.client import RemotingClient

BROKER: Final = "broker-crash"
REPLICAS: Final = 3
LOOPBACK: Final = "127.0.0.1"
FILE_SYSTEM_SIZE: Final = 512 << 20
READ_SIZE: Final = 1 << 16
SUPER_USER, PASSWORD = "operator", "12345678"
EVERY_CODE: Final = ",".join(str(int(code)) for code in RequestCode)


class CuttableProxy:
    """Passes connections to one address on to another, until it is cut.

    While it is cut, connections stay open and nothing passes, as on a cable that was pulled. What
    was under way arrives when it is mended.
    """

    def __init__(self, host: str, port: int, target_port: int) -> None:
        self.address = f"{host}:{port}"
        self._host, self._port, self._target_port = host, port, target_port
        self._passes = asyncio.Event()
        self._passes.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._host, self._port)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        self._passes.clear()

    def mend(self) -> None:
        self._passes.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._passes.wait()
            with suppress(OSError):
                to_target = await asyncio.open_connection(LOOPBACK, self._target_port)
                await asyncio.gather(
                    self._pass_on(reader, to_target[1]), self._pass_on(to_target[0], writer)
                )
        except asyncio.CancelledError:
            pass  # the proxy is being closed
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(READ_SIZE):
                await self._passes.wait()
                sink.write(data)
                await sink.drain()
            await self._passes.wait()
        except OSError:
            await self._passes.wait()
        finally:
            sink.close()


class ControllerProcess:
    """A controller that comes back on the same port with the same directory."""

    def __init__(self, home: Path) -> None:
        self.port = free_ports(0)
        self.address = f"{LOOPBACK}:{self.port}"
        self._home = home
        self._process: ForkedCommand | None = None
        home.mkdir(parents=True)
        settings = {
            "bindAddress": LOOPBACK,
            "listenPort": self.port,
            "controllerStorePath": home / "decisions",
        }
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (home / "controller.conf").write_text(text)

    async def start(self) -> None:
        """Return when it is ready."""
        arguments = ("controller", "-c", "controller.conf")
        log = self._home / "controller.log"
        self._process = await ForkedCommand.start(arguments, log=log, home=self._home)
        assert self._process.stdout is not None
        async with asyncio.timeout(READY_SECONDS_MAX):
            while line := await self._process.stdout.readline():
                if line.startswith(b"ready "):
                    return
        raise AssertionError(f"the controller did not start: {log}")

    async def kill(self) -> None:
        process, self._process = self._process, None
        await kill_process(process)


class ReplicaProcess:
    """A replica and its proxies. ``file_system`` is None unless its power is to be cut."""

    def __init__(
        self,
        home: Path,
        index: int,
        controller: ControllerProcess,
        namesrv_port: int,
        settings: Mapping[str, object],
        file_system: Ext4 | None,
    ) -> None:
        self.host = f"127.0.0.{11 + index}"
        self.port = free_ports(-2, 0, 1)  # VIP, listen, HA
        self.address = f"{self.host}:{self.port}"
        self.direct = f"{LOOPBACK}:{self.port}"
        """Address that stays reachable while the replica is cut off."""
        self.file_system = file_system
        self.proxies = [
            CuttableProxy(self.host, self.port, self.port),
            CuttableProxy(self.host, self.port + 1, self.port + 1),
            CuttableProxy(LOOPBACK, free_ports(0), controller.port),
            CuttableProxy(LOOPBACK, free_ports(0), namesrv_port),
        ]
        user = {"username": SUPER_USER, "password": PASSWORD}
        inner = {"accessKey": SUPER_USER, "secretKey": PASSWORD}
        lines: dict[str, object] = {
            **SETTINGS,
            "brokerName": BROKER,
            "brokerIP1": self.host,
            "listenPort": self.port,
            "namesrvAddr": self.proxies[3].address,
            "enableControllerMode": "true",
            "controllerAddr": self.proxies[2].address,
            "authenticationEnabled": "true",
            "authenticationWhitelist": EVERY_CODE,
            "initAuthenticationUser": json.dumps(user),
            "innerClientAuthenticationCredentials": json.dumps(inner),
            **settings,
        }
        root = home if file_system is None else file_system.mount_point
        self.store = root / "store"
        namesrv = self.proxies[3].address
        self.process = BrokerProcess(home, self.store, lines, namesrv=namesrv, forked=True)

    async def __aenter__(self) -> Self:
        await self.process.__aenter__()
        for proxy in self.proxies:
            await proxy.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.process.kill()
        for proxy in self.proxies:
            await proxy.close()

    def freeze(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def cut_off(self) -> None:
        for proxy in self.proxies:
            proxy.cut()

    def mend(self) -> None:
        for proxy in self.proxies:
            proxy.mend()

    async def cut_power(self) -> None:
        """Kill the process, and take away what it had not synced."""
        assert self.file_system is not None
        self.freeze()  # nothing is sent or synced any more
        self.file_system.cut()
        await self.process.kill()
        await asyncio.to_thread(self.file_system.unmount)
        await asyncio.to_thread(self.file_system.mount)

    def log_bytes(self) -> bytes:
        """The log, with the zeros behind its end."""
        files = sorted((self.store / "commitlog").iterdir())
        return b"".join(path.read_bytes() for path in files if path.name.isdigit())


class ReplicaGroup:
    """A name server in this process, a controller and three replicas. Enter it to start them.

    ``settings`` are further lines of each broker.conf. With ``power`` each replica has a file
    system of its own, whose power can be cut.
    """

    def __init__(self, home: Path, settings: Mapping[str, object], *, power: bool = False) -> None:
        self.home = home
        self.controller = ControllerProcess(home / "controller")
        self.replicas: list[ReplicaProcess] = []
        self.namesrv = ""
        self._settings, self._power = settings, power
        self._remoting = RemotingClient()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        self._stack.push_async_callback(self._remoting.close)
        names = NameServer(
            NamesrvConfig(
                bind_address=LOOPBACK,
                listen_port=0,
                kv_config_path=str(self.home / "namesrv" / "kvConfig.json"),
            )
        )
        self._stack.push_async_callback(names.close)
        bound = await names.start()
        self.namesrv = f"{bound[0]}:{bound[1]}"
        self._stack.push_async_callback(self.controller.kill)
        await self.controller.start()
        for index in range(REPLICAS):
            home = self.home / f"replica-{index}"
            home.mkdir()
            file_system = None
            if self._power:
                file_system = self._stack.enter_context(Ext4(home, FILE_SYSTEM_SIZE))
            replica = ReplicaProcess(
                home, index, self.controller, bound[1], self._settings, file_system
            )
            self.replicas.append(await self._stack.enter_async_context(replica))
        await asyncio.gather(*(replica.process.start() for replica in self.replicas))

    async def state(self) -> tuple[ReplicaProcess | None, set[int]]:
        """Ask the controller for the master and the ids of the sync state set.

        Raises TurbopumpError if it does not answer.
        """
        request = GetReplicaInfo(broker_name=BROKER)
        answer = await self._remoting.exchange(self.controller.address, request, timeout=3.0)
        if answer.code != ResponseCode.SUCCESS:
            return None, set()
        address = answer.header(MasterReply).master_address
        master = next((one for one in self.replicas if one.address == address), None)
        body: Any = fastjson.decode(answer.body, SyncStateSet) if answer.body else SyncStateSet()
        return master, set(body.sync_state_set)

    async def master(self) -> ReplicaProcess | None:
        """The master, or None if there is none or the controller does not answer."""
        try:
            return (await self.state())[0]
        except TurbopumpError:
            return None
