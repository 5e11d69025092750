"""Each request code of Apache's 5.3.3, tried with a good request, an incomplete one and nonsense:
the answer of docs/reference/request-codes.md, and nothing changed where it is refused."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import pytest
from tests.loops import in_loop
from tests.unit.broker.talking import watched
from tests.unit.every_code import (
    BROKER_ANSWERS,
    CONTROLLER_ANSWERS,
    NAMESRV_ANSWERS,
    SPOILT,
    Answers,
    Prepared,
    bodies_with,
    of_no_server,
    prepared_broker,
    prepared_controller,
    prepared_namesrv,
    with_extremes,
)
from tests.unit.request_codes_page import NOWHERE, OF_ACCESS_CONTROL, TO_CLIENTS, page

from turbopump.broker.handlers.unserved import UNSERVED
from turbopump.protocol.codes import RequestCode

Prepare = Callable[[Path], AbstractAsyncContextManager[Prepared]]
SERVERS = pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (prepared_broker, BROKER_ANSWERS),
        (prepared_namesrv, NAMESRV_ANSWERS),
        (prepared_controller, CONTROLLER_ANSWERS),
    ],
    ids=["broker", "name server", "controller"],
)
LAST = [
    RequestCode.POP_MESSAGE,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.DELETE_KV_CONFIG,
    RequestCode.REGISTER_BROKER,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_NAMESRV_CONFIG,
    RequestCode.DELETE_TOPIC_IN_NAMESRV,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UNREGISTER_BROKER,
    RequestCode.CONTROLLER_ELECT_MASTER,
    RequestCode.CONTROLLER_REGISTER_BROKER,
    RequestCode.CLEAN_BROKER_DATA,
]
"""They take away what others need."""


def in_order(table: Answers) -> list[int]:
    """The codes, in the order in which they are tried."""
    return sorted(table, key=lambda code: (1 + LAST.index(code) if code in LAST else 0, code))


@SERVERS
@in_loop(watched)
async def test_a_good_request_is_answered_with_success(
    tmp_path: Path, prepare: Prepare, expected: Answers
) -> None:
    async with prepare(tmp_path) as server:
        assert server.codes == server.good.keys() == expected.keys()
        said = {}
        for code in in_order(expected):
            answer = await server.peer.ask(server.good[code])
            said[code] = (str(answer.code), answer.remark if answer.code else None)
    assert said == {code: (answers[0], None) for code, answers in expected.items()}


@SERVERS
@in_loop(watched)
async def test_what_is_incomplete_or_nonsense_is_refused_as_the_page_says_and_changes_nothing(
    tmp_path: Path, prepare: Prepare, expected: Answers
) -> None:
    said: dict[int, list[set[str]]] = {}
    async with prepare(tmp_path) as server:
        before = await server.state()
        for code, (_good, *columns) in expected.items():
            said[code] = []
            for spoil, column in zip(SPOILT, columns, strict=True):
                if "0" in column.split("/"):
                    said[code].append(set(column.split("/")))  # may change something: see below
                    continue
                answers = [await server.peer.ask(trial) for trial in spoil(server.good[code])]
                assert not any("internal error" in (answer.remark or "") for answer in answers)
                said[code].append({str(answer.code) for answer in answers} or {"-"})
        assert await server.state() == before
    assert said == {
        code: [set(column.split("/")) for column in columns]
        for code, (_good, *columns) in expected.items()
    }


@SERVERS
@in_loop(watched)
async def test_what_is_odd_and_taken_all_the_same_does_no_harm(
    tmp_path: Path, prepare: Prepare, expected: Answers
) -> None:
    async with prepare(tmp_path) as server:
        for code in in_order(expected):
            for spoil, column in zip(SPOILT, expected[code][1:], strict=True):
                if "0" not in column.split("/"):
                    continue
                answers = [await server.peer.ask(trial) for trial in spoil(server.good[code])]
                assert {str(answer.code) for answer in answers} == set(column.split("/")), code
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) in ([], ["store"])


@SERVERS
@in_loop(watched)
async def test_what_the_page_says_is_refused_is_so_whatever_comes_with_it(
    tmp_path: Path, prepare: Prepare, expected: Answers
) -> None:
    in_words = {*OF_ACCESS_CONTROL, *(UNSERVED if expected is BROKER_ANSWERS else ())}
    said = {}
    async with prepare(tmp_path) as server:
        before = await server.state()
        for code in set(RequestCode) - expected.keys():
            answers = [await server.peer.ask(trial) for trial in of_no_server(code)]
            said[int(code)] = {answer.code for answer in answers}
        assert await server.state() == before
    assert said == {code: {1 if code in in_words else 3} for code in said}
    assert len(said) == len(RequestCode) - len(expected) > 50


NOT_WAITED_FOR: Final = {
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.NOTIFICATION,
    RequestCode.END_TRANSACTION,  # that says neither commit nor rollback
}
CPU_S: Final = 3.0
"""For all numbers of one request together, of client and server."""
MEMORY_KIB: Final = 200 * 1024
"""For all requests."""


@SERVERS
@in_loop(watched)
async def test_every_number_at_its_extremes(
    tmp_path: Path, prepare: Prepare, expected: Answers
) -> None:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tried = 0
    async with prepare(tmp_path) as server:
        for code in in_order(expected):
            trials = list(with_extremes(server.good[code]))
            began = time.process_time()
            asked = [asyncio.ensure_future(server.peer.ask(trial)) for trial in trials]
            if code in NOT_WAITED_FOR:
                await server.state()
                for task in asked:
                    task.cancel()
                await asyncio.gather(*asked, return_exceptions=True)
            else:
                answers = await asyncio.gather(*asked)
                assert not any("internal error" in (one.remark or "") for one in answers), code
            spent = time.process_time() - began
            assert spent < CPU_S, f"{RequestCode(code).name}: {spent:.1f} s for {len(trials)}"
            tried += len(trials)
        await server.state()
    assert tried > 100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < MEMORY_KIB


def test_extremes_reach_every_level_of_a_body() -> None:
    changed = list(bodies_with({"a": 1, "b": [{"c": 2}], "d": True}, 7))
    assert changed == [{"a": 7, "b": [{"c": 2}], "d": True}, {"a": 1, "b": [{"c": 7}], "d": True}]


def test_every_code_of_apaches_is_answered_or_refused_somewhere() -> None:
    servers = {*BROKER_ANSWERS, *NAMESRV_ANSWERS, *CONTROLLER_ANSWERS}
    answered = {*servers, *TO_CLIENTS, *OF_ACCESS_CONTROL}
    assert answered | UNSERVED.keys() | NOWHERE.keys() == set(RequestCode)
    assert not answered & (UNSERVED.keys() | NOWHERE.keys())


def test_the_page_of_request_codes_is_up_to_date() -> None:
    path = Path(__file__).parents[2] / "docs" / "reference" / "request-codes.md"
    assert path.read_text() == page(), (
        "python -m tests.unit.request_codes_page > docs/reference/request-codes.md"
    )
