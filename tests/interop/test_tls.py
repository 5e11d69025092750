"""TLS with other people's clients, and with Apache's servers in each mode.

C++ 0.4.4, Node 2.0.1 and Go 2.1.2 have no TLS; Go's has it at the head of its repository. Java's
clients and Apache's servers take Apache's own file of `tls.` properties.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from tests.interop.apache import NEWEST, ApacheCluster, properties_text
from tests.interop.foreign import ForeignClient, go_client, java_client, run
from tests.interop.our_clients import check, letters, patient_producer, read_all, send_all
from tests.interop.our_servers import OurServers, patient_turbopump
from tests.interop.patient_apache import PATIENT
from tests.interop.tools import skipping_without_tools
from tests.loops import in_loop
from tests.unit.remoting.certificates import Pair

from turbopump import ClientTls, PullConsumer
from turbopump.errors import ClientError, RemotingError

COUNT = 40
SCENARIOS = ("send_sync", "send_batch", "push_from_first", "pull", "request_reply")
JAVA = ("5.3.3", "4.9.8")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def pairs(directory: Path) -> dict[str, Pair]:
    return {name: Pair(directory, name) for name in ("server", "client")}


def apaches_file(directory: Path, pairs: dict[str, Pair]) -> Path:
    """A file for `tls.config.file` of Apache's servers and clients: each side checks the other."""
    server, client = pairs["server"], pairs["client"]
    file = directory / "tls.properties"
    file.write_text(
        properties_text(
            {
                "tls.test.mode.enable": False,
                "tls.server.need.client.auth": "require",
                "tls.server.authClient": True,
                "tls.server.certPath": server.certificate,
                "tls.server.keyPath": server.key,
                "tls.server.trustCertPath": client.certificate,
                "tls.client.authServer": True,
                "tls.client.certPath": client.certificate,
                "tls.client.keyPath": client.key,
                "tls.client.trustCertPath": server.certificate,
            }
        )
    )
    return file


# --- other people's clients, our servers


@pytest.fixture(scope="module")
def servers(directory: Path, pairs: dict[str, Pair]) -> Iterator[OurServers]:
    """They take TLS alone, and check the certificates of clients that show one."""
    settings: dict[str, str | int | bool] = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": pairs["server"].certificate,
        "tls.server.keyPath": pairs["server"].key,
        "tls.server.need.client.auth": "optional",
        "tls.server.trustCertPath": pairs["client"].certificate,
        "tls.client.trustCertPath": pairs["server"].certificate,
    }
    with patient_turbopump(directory / "ours", settings) as servers:
        yield servers


@pytest.mark.parametrize("checks", [False, True], ids=["test-mode", "each-checks-the-other"])
@pytest.mark.parametrize("version", JAVA)
def test_java_s_clients_speak_tls_to_ours(
    servers: OurServers,
    directory: Path,
    pairs: dict[str, Pair],
    version: str,
    checks: bool,
    summary: list[str],
) -> None:
    options = ["-Dtls.enable=true"]
    if checks:
        options.append(f"-Dtls.config.file={apaches_file(directory, pairs)}")
    client = ForeignClient(f"java-{version}", SCENARIOS, lambda: java_client(version, *options))
    verify(client, servers, directory, f"java-{version}-{checks}".replace(".", "-"), summary)


def test_go_s_client_of_today_speaks_tls_to_ours(
    servers: OurServers, directory: Path, summary: list[str]
) -> None:
    scenarios = ("send_and_push",)
    client = ForeignClient("go-master", scenarios, partial(go_client, folder="go-tls"))
    verify(client, servers, directory, "go-master", summary)


def verify(
    client: ForeignClient, servers: OurServers, directory: Path, prefix: str, summary: list[str]
) -> None:
    with skipping_without_tools():
        outcome = run(client, servers.namesrv, prefix, directory / prefix)
    failed = {name: report for name, report in outcome.reports.items() if not report["ok"]}
    assert not failed, outcome.stderr
    assert set(outcome.reports) == set(client.scenarios), outcome.stderr
    summary.append(f"{prefix:26} TLS: {len(outcome.reports)} scenarios, {outcome.seconds:.1f} s")


# --- our clients, Apache's servers


@dataclass(frozen=True, slots=True)
class Case:
    """A mode of Apache's servers: their certificate is their built-in one, or each side checks the
    other's; and which of our clients are served."""

    mode: str
    checks: bool
    tls: bool
    plain: bool


CASES = {
    "disabled": Case("disabled", False, tls=False, plain=True),
    "permissive": Case("permissive", False, tls=True, plain=True),
    "enforcing": Case("enforcing", True, tls=True, plain=False),
}


@pytest.fixture(scope="module")
def clusters(directory: Path, pairs: dict[str, Pair]) -> Iterator[dict[str, ApacheCluster]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(pairs["client"].certificate, pairs["client"].key)
    made = {}
    for name, case in CASES.items():
        properties = {"tls.server.mode": case.mode, "tls.enable": str(not case.plain).lower()}
        if case.checks:
            properties["tls.config.file"] = str(apaches_file(directory, pairs))
        made[name] = ApacheCluster(
            NEWEST,
            directory=directory / f"apache-{name}",
            heap="256m",
            broker_config=PATIENT,
            properties=properties,
            tls=None if case.plain else context,
        )
    with ExitStack() as stack, skipping_without_tools():
        for cluster in made.values():
            stack.callback(cluster.kill)
        with ThreadPoolExecutor() as pool:
            for future in [pool.submit(cluster.start) for cluster in made.values()]:
                future.result()
        yield made


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("speaks_tls", [True, False], ids=["tls", "plain"])
@in_loop
async def test_ours_speak_tls_to_apache_s_servers_in_each_mode(
    clusters: dict[str, ApacheCluster], pairs: dict[str, Pair], name: str, speaks_tls: bool
) -> None:
    case, cluster = CASES[name], clusters[name]
    tls: ClientTls | bool = False
    if speaks_tls:
        tls = pairs["server"].trusted(pairs["client"]) if case.checks else ClientTls(verify=False)
    topic = f"letters-{speaks_tls}"
    sent = letters(topic, COUNT)
    if not (case.tls if speaks_tls else case.plain):
        with pytest.raises((RemotingError, ClientError)):
            async with patient_producer(cluster.namesrv, tls) as producer:
                await producer.send(sent[0], timeout=5)
        return
    async with (
        patient_producer(cluster.namesrv, tls) as producer,
        PullConsumer(cluster.namesrv, group="reader", tls=tls) as reader,
    ):
        results = await send_all(producer, sent)
        received = await read_all(reader, topic, len(sent))
    check(sent, received, results)
