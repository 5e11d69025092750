"""Other people's clients with accounts, on our name server and broker, which check who asks: those
with the right keys do all that their policies allow, and nothing else.

Producers sign for a user with nothing but Pub on topics, consumers for one with nothing but Sub on
topics and groups. A third has the right key for the name server, another one for the broker; a
fourth is known to none. All clients run at once, each in a process of its own. Go 2.1.2 does not
sign what its pull consumer and its administrator ask a name server: those are left out.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
from tests.interop.accounts import ADMIN, ON
from tests.interop.foreign import (
    CACHE,
    JAVA_SCENARIOS,
    ClientRun,
    ForeignClient,
    cpp_client,
    go_client,
    java_client,
    node_client,
    pair,
    run,
)
from tests.interop.our_clients import CALL_SECONDS
from tests.interop.our_servers import OurServers, patient_turbopump
from tests.interop.tools import skipping_without_tools

from turbopump import Credentials
from turbopump.admin.cluster import Servers
from turbopump.protocol.requests.access import (
    AclInfo,
    CreateAcl,
    CreateUser,
    PolicyEntryInfo,
    PolicyInfo,
    UserInfo,
)
from turbopump.protocol.requests.topics import CreateTopic

PRODUCER, CONSUMER = Credentials("pub", "pubs-secret"), Credentials("sub", "subs-secret")
STALE, NOBODY = Credentials("stale", "stales-secret"), Credentials("nobody", "nobodys-secret")
OTHER_SECRET = "stales-secret-for-the-broker"
SECRETS = [user.secret_key for user in (ADMIN, PRODUCER, CONSUMER, STALE, NOBODY)]
MAY = {
    PRODUCER: [("Topic:may-*", "Pub")],
    CONSUMER: [("Topic:may-*", "Sub"), ("Group:may-*", "Sub")],
    STALE: [("Topic:may-*", "Sub"), ("Topic:may-*", "Pub"), ("Group:may-*", "Sub")],
}
"""What each may do, on both servers; nobody may do anything else."""
SETTINGS: dict[str, str | int | bool] = {
    **ON,
    # half messages are asked about soon and often
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 1000,
}
LEFT_OUT = {"send_signed", "query_by_key", "query_by_unique_id", "view_by_offset_id"}
"""One signs as somebody whom nobody knows; in the others, who publishes looks for messages."""
JAVA = (
    *(name for name in JAVA_SCENARIOS if name not in LEFT_OUT),
    *("transactions", "push_pops", "refused"),
)
JAVA_4 = (
    *("send_sync", "send_batch", "push_from_first", "push_resume", "pull", "lite_pull_subscribe"),
    *("request_reply", "transactions", "admin_topic", "refused"),
)
GO = (
    *("push_from_first", "push_tag_filter", "push_sql_filter", "push_two_balance"),
    *("request_reply", "transactions", "refused"),
)
CPP = ("send_sync", "send_async", "send_oneway", "push_tag_filter", "push_while_sending", "refused")
NODE = ("send_sync", "push_from_first", "push_tag_filter", "refused")
KEYS = {
    "INTEROP_ADMIN": pair(ADMIN),
    "INTEROP_PRODUCER": pair(PRODUCER),
    "INTEROP_CONSUMER": pair(CONSUMER),
    "INTEROP_STALE": pair(STALE),
    "INTEROP_NOBODY": pair(NOBODY),
}


def client(
    name: str, scenarios: tuple[str, ...], command: Callable[[], list[str]], **more: str
) -> ForeignClient:
    return ForeignClient(name, scenarios, command, lambda: {**KEYS, **more})


CLIENTS = (
    client("java-5.3.3", JAVA, partial(java_client, "5.3.3", program="Accounts")),
    client("java-4.9.8", JAVA_4, partial(java_client, "4.9.8", program="Accounts")),
    client("go-2.1.2", GO, partial(go_client, "accounts")),
    client("cpp-0.4.4", CPP, cpp_client),
    client("node-2.0.1", NODE, node_client, NODE_PATH=str(CACHE / "node-2.0.1" / "node_modules")),
)
MAKES_NO_TOPICS = {"go-2.1.2": ("request_reply",), "node-2.0.1": NODE}
"""Scenarios that look for their topic before anything is sent."""


def prefix_of(client: ForeignClient) -> str:
    return f"may-{client.name.replace('.', '-')}"


async def make_accounts(servers: OurServers) -> None:
    """Users and policies, on the name server and on the broker, and the topics of those who make
    none."""
    async with Servers([servers.namesrv], ADMIN) as admin:
        for address in (servers.namesrv, servers.broker):
            for user, may in MAY.items():
                other = user is STALE and address == servers.broker
                info = UserInfo(password=OTHER_SECRET if other else user.secret_key)
                await admin.call(address, CreateUser(username=user.access_key), info)
                entries = [
                    PolicyEntryInfo(resource=resource, actions=[action], decision="Allow")
                    for resource, action in may
                ]
                acl = AclInfo(policies=[PolicyInfo(entries=entries)])
                await admin.call(address, CreateAcl(subject=f"User:{user.access_key}"), acl)
        for one in CLIENTS:
            for scenario in MAKES_NO_TOPICS.get(one.name, ()):
                topic = f"{prefix_of(one)}-{scenario}"
                request = CreateTopic(topic=topic, read_queue_nums=4, write_queue_nums=4)
                await admin.call(servers.broker, request, timeout=CALL_SECONDS)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServers]:
    with patient_turbopump(tmp_path_factory.mktemp("accounts"), SETTINGS) as servers:
        asyncio.run(make_accounts(servers))
        yield servers


def result(runs: dict[str, Future[ClientRun]], one: ForeignClient) -> ClientRun:
    with skipping_without_tools():
        return runs[one.name].result()


@pytest.fixture(scope="module")
def run_of(
    servers: OurServers, tmp_path_factory: pytest.TempPathFactory, summary: list[str]
) -> Iterator[Callable[[ForeignClient], ClientRun]]:
    directory = tmp_path_factory.mktemp("clients")
    started = time.monotonic()
    with ThreadPoolExecutor(max_workers=len(CLIENTS)) as pool:
        runs: dict[str, Future[ClientRun]] = {
            one.name: pool.submit(run, one, servers.namesrv, prefix_of(one), directory / one.name)
            for one in CLIENTS
        }

        yield partial(result, runs)
    summary.append(f"accounts: all clients in {time.monotonic() - started:.1f} s")


@pytest.mark.parametrize("client", CLIENTS, ids=[one.name for one in CLIENTS])
def test_users_do_what_they_may_and_nothing_else(
    client: ForeignClient, run_of: Callable[[ForeignClient], ClientRun], summary: list[str]
) -> None:
    outcome = run_of(client)

    for scenario, report in outcome.reports.items():
        told = f"{scenario:20} {report['seconds']:>6} s  {report['detail']}"
        summary.append(f"{client.name} with accounts    {told}")
    failed = {name: report for name, report in outcome.reports.items() if not report["ok"]}
    assert not failed, outcome.stderr
    assert set(outcome.reports) == set(client.scenarios), f"{outcome.ending()}\n{outcome.stderr}"


def test_who_was_refused_is_in_the_audit_log_and_no_secret_is_in_any(
    servers: OurServers, run_of: Callable[[ForeignClient], ClientRun]
) -> None:
    for one in CLIENTS:
        run_of(one)

    log = servers.log()

    denied = re.findall(r"denied user=(\S+) code=(\d+)", log)
    assert {user for user, _ in denied} == {"stale", "nobody", "pub", "sub", "-"}
    assert {code for user, code in denied if user == "-"} == {"15"}  # Node signs nothing one-way
    assert [secret for secret in [*SECRETS, OTHER_SECRET] if secret in log] == []
    assert "Traceback" not in log, log[-5000:]
    assert " ERROR " not in log, log[-5000:]
