"""A broker name with several replicas under controllers, each Apache's or ours, on one machine.

The one rule: what one side is given, the other is given, in Apache's keys, which ours understand.
Nobody is asked anything here: who is the master, and whether a send is acknowledged, is a question
of the test or the benchmark. Must not import anything of turbopump, so that a benchmark can use it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.interop.apache import (
    NEWEST,
    connects,
    java,
    java_options,
    properties_text,
    write_log_settings,
)
from tests.interop.server_process import ServerProcess
from tests.interop.tcp_proxy import TcpProxy
from tests.ports import free_ports

APACHE: Final = "apache"
OURS: Final = "turbopump"
BROKER_NAME: Final = "broker-a"
CLUSTER: Final = "DefaultCluster"
START_SECONDS: Final = 120.0
BROKER_HEAP: Final = "256m"
OTHER_HEAP: Final = "128m"

Setting = str | int | bool

SAFE: Final[dict[str, Setting]] = {"allAckInSyncStateSet": True, "minInSyncReplicas": 2}
"""What the promise of a group needs. Apache's default is false and 1."""

PATIENT: Final[dict[str, Setting]] = {
    "waitTimeMillsInSendQueue": 60_000,
    "waitTimeMillsInPullQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 60_000,
}
"""A busy machine must not refuse what waited 200 ms."""

SMALL: Final[dict[str, Setting]] = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 30_000 * 20,
    "maxHashSlotNum": 100_000,
    "maxIndexNum": 400_000,
    "diskMaxUsedSpaceRatio": 95,
}
"""Files that a test can read and write quickly."""


class ReplicaGroup:
    """A name server, controllers and the replicas of one broker name. Enter it to start them all.

    The replicas are started one after the other, so the first one has the id 1 and is the first
    master. Leaving kills everything.
    """

    def __init__(
        self,
        directory: Path,
        brokers: Sequence[str],
        *,
        controller: str = APACHE,
        controllers: int = 1,
        settings: Mapping[str, Setting] | None = None,
        controller_settings: Mapping[str, Setting] | None = None,
        in_namesrv: bool = False,
        log_level: str = "WARN",
    ) -> None:
        """`brokers` and `controller` say whose each server is: APACHE or OURS. `settings` are
        further lines of each broker.conf, `controller_settings` of each controller.conf. The name
        server is of the controller's side; with `in_namesrv` it is the controller too. `log_level`
        is that of Apache's servers."""
        self.directory = directory
        self.sides = tuple(brokers)
        self.settings = {**SMALL, **PATIENT, **SAFE, **(settings or {})}
        self._controller_side = controller
        self._in_namesrv = in_namesrv
        self._log_level = log_level
        self._controller_settings = dict(controller_settings or {})
        self.namesrv_port = free_ports(0)
        self.controller_ports = [free_ports(0) for _ in range(controllers)]
        self.ports = [free_ports(-2, 0, 1) for _ in brokers]  # VIP, listen, HA
        self.proxies = [TcpProxy(self.controller_ports[0]) for _ in brokers]
        self.namesrv = self._namesrv()
        self.controllers = [self._controller(index) for index in range(controllers)]
        self.replicas = [self._replica(index) for index in range(len(brokers))]
        self._stack = ExitStack()

    @property
    def namesrv_address(self) -> str:
        return f"127.0.0.1:{self.namesrv_port}"

    @property
    def controller_address(self) -> str:
        """Of all controllers, separated by semicolons."""
        return ";".join(f"127.0.0.1:{port}" for port in self.controller_ports)

    def address(self, index: int) -> str:
        """HOST:PORT of a replica."""
        return f"127.0.0.1:{self.ports[index]}"

    def store(self, index: int) -> Path:
        return self.replicas[index].directory / "store"

    def identity(self, index: int) -> int:
        """The id that the controller gave to a replica."""
        return int((self.store(index) / "brokerIdentity").read_text().rpartition("#")[2])

    def index_of(self, address: str) -> int:
        """The replica with this address."""
        return self.ports.index(int(address.rpartition(":")[2]))

    def __enter__(self) -> Self:
        try:
            for proxy in self.proxies:
                self._stack.enter_context(proxy)
            for server in dict.fromkeys([self.namesrv, *self.controllers]):
                self._stack.callback(server.kill)
                server.start()
            for port in [self.namesrv_port, *self.controller_ports]:
                self.wait_for(port)
            for index, replica in enumerate(self.replicas):
                self._stack.callback(replica.kill)
                replica.start()
                self.wait_for_identity(index)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def wait_for(self, port: int) -> None:
        """Wait until somebody listens on this port."""
        deadline = time.monotonic() + START_SECONDS
        while not connects("127.0.0.1", port):
            assert time.monotonic() < deadline, f"nobody listens on {port}: {self.tails()}"
            time.sleep(0.02)

    def wait_for_identity(self, index: int) -> None:
        """Wait until a replica has an id of the controller."""
        deadline = time.monotonic() + START_SECONDS
        while not (self.store(index) / "brokerIdentity").exists():
            replica = self.replicas[index]
            assert replica.runs, f"replica {index} ended: {replica.tail()}"
            assert time.monotonic() < deadline, f"replica {index} has no id: {self.tails()}"
            time.sleep(0.02)

    def tails(self) -> str:
        """The last lines of every server."""
        return "\n".join(s.tail() for s in (self.namesrv, *self.controllers, *self.replicas))

    def _namesrv(self) -> ServerProcess:
        directory = self.directory / "namesrv"
        settings: dict[str, Setting] = {
            "listenPort": self.namesrv_port,
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(directory / "kvConfig.json"),
        }
        if self._in_namesrv:
            settings |= {"enableControllerInNamesrv": True, **self._controller_conf(0, directory)}
        return self._server("namesrv", directory, self._controller_side, settings)

    def _controller(self, index: int) -> ServerProcess:
        if self._in_namesrv:
            return self.namesrv
        directory = self.directory / f"controller-{index}"
        settings = self._controller_conf(index, directory)
        return self._server("controller", directory, self._controller_side, settings)

    def _controller_conf(self, index: int, directory: Path) -> dict[str, Setting]:
        peers = (f"n{i}-127.0.0.1:{port}" for i, port in enumerate(self.controller_ports))
        if self._controller_side == OURS:
            assert len(self.controller_ports) == 1, "several of ours need etcd"
            own: dict[str, Setting] = {
                "listenPort": self.controller_ports[index],
                "bindAddress": "127.0.0.1",
            }
        else:
            own = {
                "controllerDLegerGroup": "controllers",
                "controllerDLegerPeers": ";".join(peers),
                "controllerDLegerSelfId": f"n{index}",
                "mappedFileSize": 1 << 20,
                "configStorePath": str(directory / "controller.properties"),
            }
        path = {"controllerStorePath": str(directory / "controller")}
        return {**own, **path, **self._controller_settings}

    def _replica(self, index: int) -> ServerProcess:
        directory = self.directory / f"replica-{index}"
        settings: dict[str, Setting] = {
            "brokerClusterName": CLUSTER,
            "brokerName": BROKER_NAME,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": self.ports[index],
            "namesrvAddr": self.namesrv_address,
            "storePathRootDir": str(directory / "store"),
            "storePathCommitLog": str(directory / "store" / "commitlog"),
            "autoCreateTopicEnable": True,
            "totalReplicas": len(self.sides),
            "enableControllerMode": True,
            "controllerAddr": f"127.0.0.1:{self.proxies[index].port}",
            **self.settings,
        }
        if len(self.controller_ports) > 1:
            settings["controllerAddr"] = self.controller_address
        return self._server("broker", directory, self.sides[index], settings)

    def _server(
        self, role: str, directory: Path, side: str, settings: Mapping[str, Setting]
    ) -> ServerProcess:
        conf = directory / "conf" / f"{role}.conf"
        conf.parent.mkdir(parents=True, exist_ok=True)
        conf.write_text(properties_text(settings))
        if side == OURS:
            log = directory / f"{role}.log"
            ours = [sys.executable, "-m", "turbopump", role, "-c", str(conf), "--log-file"]
            return ServerProcess(role, directory, lambda: [*ours, str(log)])
        write_log_settings(NEWEST, directory, role, self._log_level)
        heap = BROKER_HEAP if role == "broker" else OTHER_HEAP
        return ServerProcess(
            role,
            directory,
            lambda: [
                java(),
                f"-Xmx{heap}",
                *java_options(NEWEST, directory, role),
                MAIN_CLASSES[role],
                "-c",
                str(conf),
            ],
            {"ROCKETMQ_HOME": str(directory)},
        )


MAIN_CLASSES: Final = {
    "namesrv": "org.apache.rocketmq.namesrv.NamesrvStartup",
    "controller": "org.apache.rocketmq.controller.ControllerStartup",
    "broker": "org.apache.rocketmq.broker.BrokerStartup",
}
