"""`turbopump doctor` and `turbopump cluster ha` on a cluster as operators run it: two name servers,
two masters with a slave each, accounts, TLS on the main and the HA ports. All is well with it, and
each planted fault is found."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.patient import ANSWER_S
from tests.unit.remoting.certificates import Pair

from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.broker.broker import Broker
from turbopump.cli import main
from turbopump.clock import SystemClock
from turbopump.config.broker_config import BrokerConfig, BrokerRole
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.config.tls import ClientTls, TlsMode
from turbopump.namesrv.server import NameServer
from turbopump.protocol import fastjson
from turbopump.protocol.request import Request
from turbopump.protocol.requests.access import CreateUser, DeleteUser, UserInfo
from turbopump.protocol.requests.namesrv import AddWritePerm, DeleteTopicInNamesrv, WipeWritePerm
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.client import RemotingClient
from turbopump.testing.broker_in_loop import PATIENT, SMALL_FILES

T = TypeVar("T")
ADMIN, INNER = ("admin", "a"), ("broker", "b")
ACCESS: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": ADMIN[0], "password": ADMIN[1]}),
    "inner_client_authentication_credentials": json.dumps(
        {"accessKey": INNER[0], "secretKey": INNER[1]}
    ),
}
ROLES = {
    "a": (BrokerRole.SYNC_MASTER, 0),
    "a-slave": (BrokerRole.SLAVE, 1),
    "b": (BrokerRole.SYNC_MASTER, 0),
    "b-slave": (BrokerRole.SLAVE, 1),
    "c": (BrokerRole.ASYNC_MASTER, 0),
    "c-rival": (BrokerRole.ASYNC_MASTER, 0),
}
"""Those called c are not started with the cluster."""


class OwnClock(SystemClock):
    """A broker's clock, which may be off."""

    def __init__(self) -> None:
        super().__init__()
        self.off_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.off_ms


class Cluster:
    """Its servers run in a thread of their own; ``run`` runs a coroutine there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.loop = asyncio.new_event_loop()
        self.name_servers: list[NameServer] = []
        self.namesrv: list[str] = []
        self.brokers: dict[str, Broker] = {}
        self.clocks: dict[str, OwnClock] = {}
        self.certificates: dict[str, Pair] = {}
        for name in ("namesrv", *ROLES):
            (directory / name).mkdir()
            self.certificates[name] = Pair(directory / name)
        self.trust = directory / "trust.pem"
        self.trust_all()
        self.credentials = directory / "admin.yml"
        self.credentials.write_text("accessKey: admin\nsecretKey: a\n")
        self.credentials.chmod(0o600)
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def trust_all(self) -> None:
        pairs = self.certificates.values()
        self.trust.write_text("".join(Path(one.certificate).read_text() for one in pairs))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def end(self) -> None:
        self.run(self._close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        self.loop.close()

    async def _close(self) -> None:
        for server in (*self.brokers.values(), *self.name_servers):
            await server.close()

    def _tls(self, name: str) -> dict[str, Any]:
        pair = self.certificates[name]
        return {
            "tls_server_mode": TlsMode.ENFORCING,
            "tls_server_cert_path": pair.certificate,
            "tls_server_key_path": pair.key,
            "tls_client_trust_cert_path": str(self.trust),
        }

    async def start(self) -> None:
        for number in range(2):
            config = NamesrvConfig(
                listen_port=0,
                kv_config_path=str(self.directory / f"namesrv{number}" / "kvConfig.json"),
                **ACCESS,
                **self._tls("namesrv"),
            )
            server = NameServer(config)
            self.name_servers.append(server)
            _, port = await server.start()
            self.namesrv.append(f"127.0.0.1:{port}")
        for name in ("a", "a-slave", "b", "b-slave"):
            await self.start_broker(name)
        await self.make_topic()

    async def make_topic(self, queues: int = 2) -> None:
        """Make or change it: it is registered then."""
        for master in ("a", "b"):
            await self.ask(
                self.brokers[master].address,
                CreateTopic(topic="orders", read_queue_nums=queues, write_queue_nums=queues),
            )

    async def start_broker(self, name: str, namesrv: str = "", **config: Any) -> Broker:
        role, number = ROLES[name]
        clock = self.clocks[name] = OwnClock()
        broker = Broker(
            BrokerConfig(
                broker_name=name.partition("-")[0],
                broker_role=role,
                broker_id=number,
                namesrv_addr=namesrv or ";".join(self.namesrv),
                listen_port=0,
                store_path_root_dir=str(self.directory / name / "store"),
                register_name_server_period=60_000,
                **{**SMALL_FILES, **PATIENT, **ACCESS, **self._tls(name), **config},
            ),
            clock=clock,
        )
        self.brokers[name] = broker
        await broker.start()
        return broker

    async def stop_broker(self, name: str) -> None:
        await self.brokers.pop(name).close()

    async def ask(self, address: str, request: Request[Any], body: bytes = b"") -> None:
        signer = RequestSigner(Credentials(*ADMIN))
        tls = ClientTls(trust=str(self.trust))
        client = RemotingClient(signer=signer, tls=tls, connect_timeout=ANSWER_S)
        try:
            await client.call(address, request, body, timeout=ANSWER_S)
        finally:
            await client.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.run(made.start())
        yield made
    finally:
        made.end()


@pytest.fixture(autouse=True)
def _a_busy_machine_is_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turbopump.admin.doctor.brokers.SLOW_MS", 60_000)


class Said:
    """What a command said, and its exit code."""

    def __init__(self, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._cluster, self._capsys = cluster, capsys

    def __call__(self, *command: str) -> tuple[int, str]:
        cluster = self._cluster
        how = ("-n", ";".join(cluster.namesrv), "--credentials", str(cluster.credentials))
        code = main([*command, *how, "--tls-trust", str(cluster.trust)])
        told = self._capsys.readouterr()
        return code, told.out + told.err

    def until(self, code: int, *command: str, says: str = "") -> str:
        """What it says when its exit code is ``code``, and ``says`` is in one of its lines of what
        is wrong, which may take a while."""
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            found, text = self(*command)
            wrong = [line for line in text.splitlines() if line.startswith("WRONG")]
            if found == code and (not says or any(says in line for line in wrong)):
                return text
        raise AssertionError(text)


@pytest.fixture
def say(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Said:
    return Said(cluster, capsys)


DOCTOR, HA = ("doctor", "-t", "orders"), ("cluster", "ha")


def test_all_is_well_with_a_healthy_cluster(say: Said) -> None:
    text = say.until(0, *DOCTOR)  # until the slaves are in sync
    assert "WRONG" not in text
    assert text.endswith("no problem found\n")
    assert text.count("1 slave in sync") == 2
    assert "4 queues on a, b" in text
    assert say(*HA)[0] == 0


# --- the faults, each planted and taken back


@asynccontextmanager
async def a_slave_is_down(cluster: Cluster) -> AsyncIterator[None]:
    """Name servers have not noticed yet."""
    await cluster.brokers["a-slave"].parts.listening.server.close()
    yield
    await cluster.stop_broker("a-slave")
    await cluster.start_broker("a-slave")


@asynccontextmanager
async def a_slave_has_other_accounts(cluster: Cluster) -> AsyncIterator[None]:
    slave = cluster.brokers["a-slave"]
    assert slave.parts.copying.slave_accounts is not None
    await slave.parts.copying.slave_accounts.stop()
    spy = fastjson.encode(UserInfo(username="spy", password="s", user_type="Normal"))
    await cluster.ask(slave.address, CreateUser(username="spy"), spy)
    yield
    await cluster.ask(slave.address, DeleteUser(username="spy"))
    slave.parts.copying.slave_accounts.start()


@asynccontextmanager
async def a_master_has_no_slave(cluster: Cluster) -> AsyncIterator[None]:
    await cluster.stop_broker("b-slave")
    yield
    await cluster.start_broker("b-slave")


@asynccontextmanager
async def the_disk_of_a_slave_is_full(cluster: Cluster) -> AsyncIterator[None]:
    await cluster.stop_broker("b-slave")
    await cluster.start_broker("b-slave", disk_free_space_min=1 << 60)
    yield
    await cluster.stop_broker("b-slave")
    await cluster.start_broker("b-slave")


@asynccontextmanager
async def a_clock_is_off(cluster: Cluster) -> AsyncIterator[None]:
    cluster.clocks["a"].off_ms = 90_000
    yield
    cluster.clocks["a"].off_ms = 0


@asynccontextmanager
async def two_masters_have_one_name(cluster: Cluster) -> AsyncIterator[None]:
    """Each is known to another name server: one server refuses the second."""
    await cluster.start_broker("c", cluster.namesrv[0])
    await cluster.start_broker("c-rival", cluster.namesrv[1])
    yield
    await cluster.stop_broker("c")
    await cluster.stop_broker("c-rival")


@asynccontextmanager
async def a_master_may_not_be_written(cluster: Cluster) -> AsyncIterator[None]:
    for namesrv in cluster.namesrv:
        await cluster.ask(namesrv, WipeWritePerm(broker_name="a"))
    yield
    for namesrv in cluster.namesrv:
        await cluster.ask(namesrv, AddWritePerm(broker_name="a"))


@asynccontextmanager
async def a_name_server_does_not_know_a_broker(cluster: Cluster) -> AsyncIterator[None]:
    await cluster.stop_broker("b-slave")
    await cluster.start_broker("b-slave", cluster.namesrv[0])
    yield
    await cluster.stop_broker("b-slave")
    await cluster.start_broker("b-slave")


@asynccontextmanager
async def a_certificate_has_expired(cluster: Cluster) -> AsyncIterator[None]:
    pair = cluster.certificates["b-slave"]
    pair.make(days=-1)
    cluster.trust_all()
    yield
    pair.make()
    cluster.trust_all()


@asynccontextmanager
async def a_name_server_does_not_know_a_topic(cluster: Cluster) -> AsyncIterator[None]:
    await cluster.ask(cluster.namesrv[1], DeleteTopicInNamesrv(topic="orders"))
    yield
    await cluster.make_topic(3)
    await cluster.make_topic()


@asynccontextmanager
async def others_may_read_the_passwords(cluster: Cluster) -> AsyncIterator[None]:
    accounts = cluster.directory / "a-slave" / "store" / "config" / "auth" / "accounts.json"
    accounts.chmod(0o644)
    yield
    accounts.chmod(0o600)


Fault = Callable[[Cluster], AbstractAsyncContextManager[None]]
FAULTS: list[tuple[Fault, tuple[str, ...], str]] = [
    (a_slave_is_down, HA, "Connection refused"),
    (a_slave_has_other_accounts, HA, "has other users and policies than its master: spy"),
    (a_master_has_no_slave, HA, "broker b: it waits for 1 slave (inSyncReplicas=2) and has 0"),
    (the_disk_of_a_slave_is_full, (), "broker b, slave 1: it refuses sends: the disk of "),
    (a_clock_is_off, (), "broker a: its clock is 90 s ahead of this machine's"),
    (two_masters_have_one_name, (), "broker c: it has two masters: "),
    (a_master_may_not_be_written, (), "topic orders: it cannot be sent to on a"),
    (a_name_server_does_not_know_a_broker, (), "it does not know the broker b ("),
    (a_certificate_has_expired, HA, "certificate has expired"),
    (a_name_server_does_not_know_a_topic, (), "topic orders: "),
    (others_may_read_the_passwords, (), "other users can read or change its passwords"),
]


@pytest.mark.parametrize(
    ("fault", "too", "says"), FAULTS, ids=[fault.__name__ for fault, _, _ in FAULTS]
)
def test_a_planted_fault_is_found(
    cluster: Cluster, say: Said, fault: Fault, too: tuple[str, ...], says: str
) -> None:
    say.until(0, *DOCTOR)
    planted = fault(cluster)
    cluster.run(planted.__aenter__())
    try:
        say.until(1, *DOCTOR, says=says)
        if too:
            assert say(*too)[0] == 1
    finally:
        cluster.run(planted.__aexit__(None, None, None))
    say.until(0, *DOCTOR)
    assert say(*HA)[0] == 0
