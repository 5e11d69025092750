"""Port of `/metrics`: who may read it, over TLS and without, and what a scrape costs others."""

import asyncio
import base64
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.loops import in_loop
from tests.unit.auth.signed import ADDRESS, ADMIN, ANN, BOB, USERS, access, allow, deny
from tests.unit.remoting.certificates import Pair

from turbopump.auth.policies import Action, Entry
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.metrics.family import Family, Kind, Metrics, Sample
from turbopump.remoting.metrics_port import MayRead, MetricsPort

LAG = Family("lag", Kind.GAUGE, "Lag.", ("topic",))


def metrics(read: Iterator[Sample | None] | list[Sample]) -> Metrics:
    found = Metrics()
    found.add(LAG, lambda: read)
    return found


def fetch(url: str, trust: str = "", user: str = "") -> tuple[int, str]:
    context = ssl.create_default_context(cafile=trust) if trust else None
    request = urllib.request.Request(url)
    if user:
        request.add_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def answer(
    config: NamesrvConfig, may_read: MayRead | None = None, trust: str = "", user: str = ""
) -> tuple[int, str]:
    port = MetricsPort(config, metrics([(("a",), 1)]), may_read)
    await port.open(0)
    assert port.address is not None
    try:
        scheme = "https" if trust else "http"
        url = f"{scheme}://127.0.0.1:{port.address[1]}/metrics"
        return await asyncio.to_thread(fetch, url, trust, user)
    finally:
        port.close()


def ann_may(name: str, password: str, _host: str) -> bool:
    return (name, password) == ("ann", "söcret:x")


@in_loop
async def test_on_the_loopback_interface_the_page_needs_no_credentials() -> None:
    status, body = await answer(NamesrvConfig(), ann_may)
    assert (status, body.splitlines()[-1]) == (200, 'lag{topic="a"} 1')


@in_loop
async def test_beyond_loopback_a_user_with_the_password_reads_it_over_tls(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    config = NamesrvConfig(
        metrics_prom_exporter_host="0.0.0.0",
        tls_server_cert_path=pair.certificate,
        tls_server_key_path=pair.key,
    )
    trust = pair.certificate
    for wrong in ("", "ann:wrong", "ann", ":", "bob:söcret:x"):
        status, body = await answer(config, ann_may, trust, wrong)
        assert status == 401
        assert body.startswith("this page needs the name and the password of a user")
    status, body = await answer(config, ann_may, trust, "ann:söcret:x")
    assert (status, body.splitlines()[-1]) == (200, 'lag{topic="a"} 1')
    with pytest.raises(OSError, match=r"reset|closed|without response|EOF"):
        await answer(config, ann_may)  # in plain text


@pytest.mark.parametrize(
    ("policies", "settings", "readers"),
    [
        ([], {"authorization": False}, {ADMIN, ANN, BOB}),
        ([], {}, {ADMIN}),
        ([allow("Cluster:DefaultCluster", Action.GET)], {}, {ADMIN, ANN}),
        ([allow("Cluster:DefaultCluster", Action.UPDATE)], {}, {ADMIN}),
        ([deny("Cluster:DefaultCluster", Action.GET)], {}, {ADMIN}),
        ([allow("Cluster:*", Action.GET, sources=["10.0.0.0/8"])], {}, {ADMIN}),
    ],
)
@in_loop
async def test_who_may_get_the_cluster_may_read_its_metrics(
    policies: list[Entry], settings: dict[str, bool], readers: set[str]
) -> None:
    may_read = access(*policies, **settings).may_read_metrics
    found = {name for name in (ADMIN, ANN, BOB) if may_read(name, USERS[name].password, ADDRESS)}
    assert found == readers
    assert not may_read(ADMIN, "wrong", ADDRESS)
    assert not may_read("nobody", "wrong", ADDRESS)


@in_loop
async def test_the_audit_log_has_who_was_refused_the_metrics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    may_read = access().may_read_metrics
    assert not may_read(ANN, "wrong", "10.1.1.1")
    assert not may_read("", "", "10.1.1.2")
    assert not may_read(ANN, USERS[ANN].password, "10.1.1.3")
    assert [line.partition(" rule=")[0] for line in caplog.messages] == [
        f"denied user={ANN} page=/metrics asked=- peer=10.1.1.1",
        "denied user=- page=/metrics asked=- peer=10.1.1.2",
        f"denied user={ANN} page=/metrics asked=Cluster:DefaultCluster Get peer=10.1.1.3",
    ]


@in_loop
async def test_other_work_goes_on_during_a_long_scrape() -> None:
    turns_between = 0

    def slow() -> Iterator[Sample | None]:
        began = loop.time()
        for number in range(20_000):
            yield ((str(number),), number)
        assert loop.time() > began

    async def others() -> None:
        nonlocal turns_between
        while True:
            turns_between += 1
            await asyncio.sleep(0)

    loop = asyncio.get_running_loop()
    port = MetricsPort(NamesrvConfig(), metrics(slow()))
    await port.open(0)
    assert port.address is not None
    other = loop.create_task(others())
    status, body = await asyncio.to_thread(fetch, f"http://127.0.0.1:{port.address[1]}/metrics")
    other.cancel()
    port.close()
    assert (status, body.count("\n")) == (200, 20_002)
    assert turns_between > 20


@in_loop
async def test_a_page_that_fails_between_two_pieces_is_seen_to_be_incomplete(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing() -> Iterator[Sample | None]:
        yield (("a",), 1)
        yield None
        raise ValueError("lost")

    port = MetricsPort(NamesrvConfig(), metrics(failing()))
    await port.open(0)
    assert port.address is not None
    with pytest.raises(Exception) as caught:  # noqa: PT011
        await asyncio.to_thread(fetch, f"http://127.0.0.1:{port.address[1]}/metrics")
    port.close()
    assert type(caught.value).__name__ in ("IncompleteRead", "ConnectionResetError")
    assert "page failed path=/metrics cause=ValueError('lost')" in caplog.text
