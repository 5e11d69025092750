"""Two of our controllers that agree through a real etcd, and three of our replicas, each a process
that a test may kill or freeze.

The one rule: a process that is started again has the port and the directory that it had.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.crash.broker_process import NAME, BrokerProcess, kill_process
from tests.interop.etcd_members import EtcdMembers, etcd_members
from tests.ports import free_ports

from turbopump.admin.admin import Admin
from turbopump.admin.controllers import ControllerState, GroupState
from turbopump.errors import TurbopumpError

PATIENCE_S = 90.0


class ControllerProcess:
    """A controller. ``log`` is what it has logged."""

    def __init__(self, home: Path, number: int, peers: list[str], etcd: EtcdMembers) -> None:
        self.address = peers[number]
        self._home = home
        self._process: asyncio.subprocess.Process | None = None
        settings = {
            "controllerDLegerPeers": ";".join(f"n{at}-{peer}" for at, peer in enumerate(peers)),
            "controllerDLegerSelfId": f"n{number}",
            "controllerStorePath": home,
            **etcd.settings,
        }
        home.mkdir()
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (home / "controller.conf").write_text(text)

    async def start(self) -> None:
        with (self._home / "controller.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "turbopump",
                "controller",
                "-c",
                str(self._home / "controller.conf"),
                stdout=log,
                stderr=log,
            )

    async def kill(self) -> None:
        process, self._process = self._process, None
        await kill_process(process)

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @property
    def log(self) -> str:
        return (self._home / "controller.log").read_text()


class ControlledGroup:
    """``admin`` asks the name server that lives in the test's process."""

    def __init__(self, etcd: EtcdMembers, controllers: list[ControllerProcess]) -> None:
        self.etcd = etcd
        self.controllers = controllers
        self.brokers: list[BrokerProcess] = []
        self.namesrv = ""
        self.admin: Admin

    @property
    def addresses(self) -> str:
        return ";".join(one.address for one in self.controllers)

    async def until_leader(self, *besides: ControllerProcess) -> ControllerProcess:
        """Wait until a controller leads that is none of these."""
        for_others = ";".join(one.address for one in self.controllers if one not in besides)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for state in await self.admin.controllers.states(for_others):
                    if state.metadata is not None and state.metadata.is_leader:
                        return next(one for one in self.controllers if one.address == state.address)
                await asyncio.sleep(0.05)

    async def until_no_leader(self) -> list[ControllerState]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                states = await self.admin.controllers.states(self.addresses)
                if not any(state.leader for state in states):
                    return states
                await asyncio.sleep(0.05)

    async def group(self, controller: ControllerProcess) -> GroupState:
        """What a leading controller knows."""
        return (await self.admin.controllers.replicas([NAME], controller.address))[NAME]

    async def until_in_sync(self, count: int, *, besides: int | None = None) -> GroupState:
        """Wait until a master other than this one has so many replicas in sync."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    found = await self.admin.controllers.replicas([NAME], self.addresses)
                except TurbopumpError:
                    found = {}
                group = found.get(NAME)
                if (
                    group is not None
                    and group.master_id not in (None, besides)
                    and len([one for one in group.replicas if one.in_sync and one.alive]) >= count
                ):
                    return group
                await asyncio.sleep(0.1)

    def broker_at(self, address: str | None) -> BrokerProcess:
        return next(one for one in self.brokers if one.address == address)


@asynccontextmanager
async def controlled_group(directory: Path) -> AsyncIterator[ControlledGroup]:
    """A group whose three replicas are in sync."""
    async with AsyncExitStack() as stack:
        etcd = await stack.enter_async_context(etcd_members(directory / "etcd"))
        peers = [f"127.0.0.1:{free_ports(0)}" for _ in range(2)]
        controllers = [
            ControllerProcess(directory / f"controller{number}", number, peers, etcd)
            for number in range(2)
        ]
        group = ControlledGroup(etcd, controllers)
        for controller in controllers:
            stack.push_async_callback(controller.kill)
            await controller.start()
        namesrv = ""
        for number in range(3):
            broker = BrokerProcess(
                directory / f"home{number}",
                directory / f"store{number}",
                {
                    "enableControllerMode": "true",
                    "controllerAddr": ";".join(peers),
                    "haListenPort": free_ports(0),
                    "mappedFileSizeCommitLog": 16 * 1024 * 1024,
                },
                namesrv=namesrv,
            )
            await stack.enter_async_context(broker)
            namesrv = broker.namesrv
            group.brokers.append(broker)
        group.namesrv = namesrv
        group.admin = await stack.enter_async_context(Admin(namesrv))
        await group.until_leader()
        for broker in group.brokers:
            await broker.spawn()
        await group.until_in_sync(3)
        yield group
