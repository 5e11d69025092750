"""Other people's clients against `turbopump namesrv` and `turbopump broker`: every scenario of
every client is one test.

All clients run at once against one server, each in a process of its own; the first test of a client
waits for its run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
from tests.interop.foreign import CLIENT_TABLE, ClientRun, ForeignClient, run
from tests.interop.our_servers import OurServers, patient_turbopump
from tests.interop.tools import skipping_without_tools

CASES = [(client, scenario) for client in CLIENT_TABLE for scenario in client.scenarios]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServers]:
    with patient_turbopump(tmp_path_factory.mktemp("turbopump")) as servers:
        yield servers


def result(runs: dict[str, Future[ClientRun]], client: ForeignClient) -> ClientRun:
    with skipping_without_tools():
        return runs[client.name].result()


@pytest.fixture(scope="module")
def run_of(
    servers: OurServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[ForeignClient], ClientRun]]:
    directory = tmp_path_factory.mktemp("clients")
    with ThreadPoolExecutor(max_workers=3) as pool:
        runs: dict[str, Future[ClientRun]] = {
            client.name: pool.submit(
                run, client, servers.namesrv, client.name.replace(".", "-"), directory / client.name
            )
            for client in CLIENT_TABLE
        }

        yield partial(result, runs)


@pytest.mark.parametrize(("client", "scenario"), CASES, ids=[f"{c.name}-{s}" for c, s in CASES])
def test_every_message_of_a_foreign_client_is_what_it_sent(
    client: ForeignClient,
    scenario: str,
    run_of: Callable[[ForeignClient], ClientRun],
    summary: list[str],
) -> None:
    outcome = run_of(client)

    report = outcome.reports.get(scenario)

    assert report, (
        f"{client.name} {outcome.ending()} before {scenario} was through\n{outcome.stderr}"
    )
    summary.append(f"{client.name:26} {scenario:20} {report['seconds']:>6} s  {report['detail']}")
    assert report["ok"], f"{report['detail']}\n{outcome.stderr}"


@pytest.mark.parametrize("client", CLIENT_TABLE, ids=[client.name for client in CLIENT_TABLE])
def test_a_client_may_crash_only_after_all_its_messages_were_verified(
    client: ForeignClient, run_of: Callable[[ForeignClient], ClientRun], summary: list[str]
) -> None:
    outcome = run_of(client)

    verified = {name for name, report in outcome.reports.items() if report["ok"]}

    assert verified == set(client.scenarios), f"{client.name} {outcome.ending()}"
    note = "" if outcome.exit_code == 0 else f"; note: it {outcome.ending()} after all was verified"
    summary.append(f"{client.name:26} {len(verified)} scenarios in {outcome.seconds:.1f} s{note}")


def test_our_servers_logged_no_error_under_foreign_clients(
    servers: OurServers, run_of: Callable[[ForeignClient], ClientRun]
) -> None:
    for client in CLIENT_TABLE:
        run_of(client)

    text = servers.log()

    assert "Traceback" not in text, text[-5000:]
    assert " ERROR " not in text, text[-5000:]
