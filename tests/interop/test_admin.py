"""Our ``Admin`` on our servers and on Apache's: each operation of Apache's ``DefaultMQAdminExt``
has the same result on both."""

from __future__ import annotations

import asyncio
import difflib
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from pprint import pformat
from typing import Final, NamedTuple

import pytest
from tests.interop.accounts import ADMIN, APACHES_ON, ON
from tests.interop.admin_cases import CONTROLLED, GIVES_UP_SOON, Cases, prepare, side_of
from tests.interop.admin_client_cases import CLIENTS
from tests.interop.admin_server_cases import ACCOUNTS, SERVERS
from tests.interop.apache import NEWEST, fetch_jars
from tests.interop.foreign import found
from tests.interop.java_admin import ACCOUNT_COMPARISONS, COMPARISONS, compared, make_ann
from tests.interop.our_servers import patient_turbopump
from tests.interop.patient_apache import patient_apache
from tests.interop.tools import skipping_without_tools
from tests.unit.admin.admin_page import WITHOUT

from turbopump import Credentials

PLAIN: Final = Cases({**CLIENTS, **SERVERS})
"""Cases for servers without access control."""


Comparisons = Mapping[str, tuple[object, object]]


class Outcomes(NamedTuple):
    """What was found on our servers, and on Apache's: the result of each case, and answers that
    Java gets beside ours."""

    ours: tuple[dict[str, object], Comparisons]
    apache: tuple[dict[str, object], Comparisons]


async def outcomes_at(
    cases: Cases, namesrv: str, broker: str, root: Path, credentials: Credentials | None
) -> tuple[dict[str, object], Comparisons]:
    async with side_of(namesrv, broker, str(root), credentials) as side:
        if credentials is not None:
            results = await cases.outcomes(side)
            await make_ann(side)
            return results, await compared(side, root / "java", credentials)
        await prepare(side)
        return await cases.outcomes(side), await compared(side, root / "java")


@contextmanager
def both_outcomes(cases: Cases, directory: Path, *, accounts: bool = False) -> Iterator[Outcomes]:
    credentials = ADMIN if accounts else None
    with ExitStack() as stack:
        stack.enter_context(skipping_without_tools())
        ours = stack.enter_context(
            patient_turbopump(directory / "ours", ON if accounts else GIVES_UP_SOON)
        )
        theirs = stack.enter_context(
            patient_apache(
                NEWEST, directory / "apache", **(APACHES_ON if accounts else GIVES_UP_SOON)
            )
        )
        yield Outcomes(
            *(
                asyncio.run(
                    outcomes_at(cases, one.namesrv, one.broker, directory / name, credentials)
                )
                for name, one in (("ours", ours), ("apache", theirs))
            )
        )


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, summary: list[str]) -> Iterator[Outcomes]:
    started = time.monotonic()
    with both_outcomes(PLAIN, tmp_path_factory.mktemp("admin")) as found:
        seconds = time.monotonic() - started
        summary.append(f"Admin, {len(PLAIN)} cases on ours and on Apache's: {seconds:.1f} s")
        yield found


@pytest.fixture(scope="module")
def account_outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    with both_outcomes(ACCOUNTS, tmp_path_factory.mktemp("accounts"), accounts=True) as found:
        yield found


@pytest.mark.parametrize("name", PLAIN)
def test_an_operation_has_the_same_result_on_apaches_servers(outcomes: Outcomes, name: str) -> None:
    check(outcomes, name)


@pytest.mark.parametrize("name", ACCOUNTS)
def test_an_operation_on_accounts_has_the_same_result_on_apaches_broker(
    account_outcomes: Outcomes, name: str
) -> None:
    check(account_outcomes, name)


def check(outcomes: Outcomes, name: str) -> None:
    (ours, _), (apache, _) = outcomes
    for result in (ours[name], apache[name]):
        if isinstance(result, Exception):
            raise result
    same(ours[name], apache[name], "ours", "apache")


def same(one: object, other: object, name: str, other_name: str) -> None:
    lines, other_lines = (pformat(each, width=100).splitlines() for each in (one, other))
    difference = "\n".join(difflib.unified_diff(lines, other_lines, name, other_name, lineterm=""))
    assert not difference, difference


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("servers", ["ours", "apache"])
def test_an_answer_is_the_one_that_java_gets(outcomes: Outcomes, name: str, servers: str) -> None:
    check_java(outcomes, name, servers)


@pytest.mark.parametrize("name", ACCOUNT_COMPARISONS)
@pytest.mark.parametrize("servers", ["ours", "apache"])
def test_an_answer_about_accounts_is_the_one_that_java_gets(
    account_outcomes: Outcomes, name: str, servers: str
) -> None:
    check_java(account_outcomes, name, servers)


def check_java(outcomes: Outcomes, name: str, servers: str) -> None:
    _, comparisons = getattr(outcomes, servers)
    java, ours = comparisons[name]
    same(java, ours, "java", "Admin")


def test_every_operation_of_apache_has_a_case_or_a_reason() -> None:
    """The operations are those of Apache's jar, so none is forgotten."""
    tried = PLAIN.operations | ACCOUNTS.operations | CONTROLLED
    operations = operations_of_apache()
    assert tried & WITHOUT.keys() == set()
    assert operations - tried - WITHOUT.keys() == set()
    assert tried | WITHOUT.keys() <= operations


def operations_of_apache() -> set[str]:
    with skipping_without_tools():
        library, javap = fetch_jars(NEWEST), found("javap")
    interfaces = (
        "org.apache.rocketmq.tools.admin.MQAdminExt",
        "org.apache.rocketmq.client.MQAdmin",
    )
    shown = subprocess.run(
        [javap, "-cp", f"{library}/*", *interfaces], capture_output=True, text=True, check=True
    )
    return set(re.findall(r"(\w+)\(", shown.stdout))
