"""Programs of ``examples/`` run as a user runs them, and leave in topics and tables what they say.

``tests/spark/test_examples.py`` runs those that need Spark.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.topic_contents import stored, uncommitted
from tests.unit.guide_page import PATIENCE, ROOT, Running
from tests.waits import until

from turbopump import TransactionState
from turbopump.testing import BrokerThread

EXAMPLES = ROOT / "examples"
LINES_MAX = 60
"""Of an example, without comments and empty lines."""
THE_DEMO = {"flights_demo.py", "flights.py"}
"""A program of its own kind, which shows many things at once."""


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as running:
        yield running


def environment(broker: BrokerThread) -> dict[str, str]:
    return {
        **os.environ,
        "NAMESRV_ADDR": broker.namesrv,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "error",
    }


def run(name: str, broker: BrokerThread, directory: Path) -> list[str]:
    """Run an example to its end, and return the lines that it printed."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=directory,
        env=environment(broker),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_steps_of_an_order_are_stored_and_handled_in_order(
    broker: BrokerThread, tmp_path: Path
) -> None:
    lines = run("ordered.py", broker, tmp_path)
    messages = stored(broker, "order-steps")
    assert len(lines) == 15
    for order in ("17", "18", "19"):
        assert [line for line in lines if line.startswith(f"order {order}: ")] == [
            f"order {order}: ordered",
            f"order {order}: the bank does not answer, try again",
            f"order {order}: paid",
            f"order {order}: packed",
            f"order {order}: sent",
        ]
        steps = [each for each in messages if each.keys == [order]]
        assert [each.body for each in steps] == [b"ordered", b"paid", b"packed", b"sent"]
        assert len({each.queue_id for each in steps}) == 1
    assert uncommitted(broker, "order-steps", "order-tracking") == 0


def test_a_group_without_consumers_is_behind(broker: BrokerThread, tmp_path: Path) -> None:
    for _ in range(2):  # the second run finds the topic and the group
        (line,) = run("admin_lag.py", broker, tmp_path)
        assert re.fullmatch(r"couriers: 3 messages behind, \d+ s, 0 consumers", line)
    assert len(stored(broker, "parcels")) == 6


def test_delayed_messages_come_when_due_and_the_recalled_one_never(
    broker: BrokerThread, tmp_path: Path
) -> None:
    lines = run("delayed.py", broker, tmp_path)
    assert lines[:2] == ["sent three messages for later", "order 18 is paid: recalled its reminder"]
    ship, cancel = (re.fullmatch(r"after (\d+\.\d) s: (.*)", line) for line in lines[2:])
    assert ship is not None
    assert float(ship[1]) >= 1
    assert ship[2] == "ship order 17"
    assert cancel is not None
    assert float(cancel[1]) >= 3
    assert cancel[2] == "cancel order 19"
    bodies = sorted(each.body for each in stored(broker, "reminders"))
    assert bodies == [b"cancel order 19", b"ship order 17"]
    assert uncommitted(broker, "reminders", "reminding") == 0


def test_only_seats_that_the_database_has_booked_are_announced(
    broker: BrokerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = run("transaction.py", broker, tmp_path)
    assert lines[:3] == ["seat 7A: commit", "seat 7A: rollback", "seat 7B: commit"]
    assert sorted(lines[3:]) == ["ticket for seat 7A", "ticket for seat 7B"]
    messages = stored(broker, "bookings")
    with closing(sqlite3.connect(tmp_path / "bookings.db")) as connection:
        rows = connection.execute("select seat, transaction_id from bookings").fetchall()
    assert sorted(rows) == sorted((each.body.decode(), each.msg_id) for each in messages)
    assert uncommitted(broker, "bookings", "tickets") == 0

    monkeypatch.chdir(tmp_path)
    look_up = runpy.run_path(str(EXAMPLES / "transaction.py"))["look_up"]
    assert look_up(messages[0]) == TransactionState.COMMIT
    messages[0].properties["__transactionId__"] = "of no booking"
    assert look_up(messages[0]) == TransactionState.ROLLBACK


def test_each_request_gets_its_own_reply(broker: BrokerThread, tmp_path: Path) -> None:
    assert run("request_reply.py", broker, tmp_path) == [
        "a book: 12.50 EUR",
        "a pen: 1.20 EUR",
        "a ship: not for sale",
    ]
    bodies = sorted(each.body for each in stored(broker, "price-requests"))
    assert bodies == [b"a book", b"a pen", b"a ship"]
    assert uncommitted(broker, "price-requests", "price-desk") == 0


def test_a_payment_is_charged_once_also_in_a_second_run(
    broker: BrokerThread, tmp_path: Path
) -> None:
    charged = [f"payment {each}" for each in ("17: charged 12.50", "18: charged 80.00")]
    skipped = [f"payment {each}: charged before, skipped" for each in ("17", "18")]
    assert sorted(run("idempotent.py", broker, tmp_path)) == sorted(
        [*(f"{each} EUR" for each in charged), "payment 19: charged 5.00 EUR", *skipped]
    )
    again = sorted(run("idempotent.py", broker, tmp_path))
    assert again == sorted([*skipped, *skipped, "payment 19: charged before, skipped"])
    assert len(stored(broker, "payments")) == 10
    assert uncommitted(broker, "payments", "charging") == 0


def answer_of(url: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    """Status and JSON of a GET, or of a POST if there is a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@in_loop
async def test_the_service_sends_orders_and_bills_them(
    rocketmq: BrokerThread, tmp_path: Path
) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    running = re.compile(r"running on (http://127\.0\.0\.1:\d+) ")
    command = f'"{sys.executable}" -m uvicorn --app-dir "{EXAMPLES}" orders_service:app --port 0'
    service = Running(command, running.search, tmp_path, environment(rocketmq))
    try:
        await asyncio.to_thread(service.wait_until_enough)
        address = running.search(service.printed)
        assert address, service.printed
        orders = f"{address[1]}/orders"
        book = {"item": "a book", "quantity": 2}

        status, placed = await asyncio.to_thread(answer_of, orders, book)
        assert status == 202
        await until(lambda: f"billed order {placed['id']}: 2 of a book" in service.printed)
        assert await asyncio.to_thread(answer_of, f"{orders}/{placed['id']}") == (200, book)
        (message,) = stored(rocketmq, "placed-orders")
        assert (json.loads(message.body), message.keys) == (book, [placed["id"]])

        status, _ = await asyncio.to_thread(answer_of, orders, {**book, "quantity": 0})
        assert status == 422
        status, _ = await asyncio.to_thread(answer_of, f"{orders}/unknown")
        assert status == 404
        assert len(stored(rocketmq, "placed-orders")) == 1

        rocketmq.stop()
        status, _ = await asyncio.to_thread(answer_of, orders, book)
        assert status == 503
    finally:
        os.killpg(service.process.pid, signal.SIGINT)
        service.end()
    assert "Application shutdown complete" in service.printed


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_is_listed_and_run_by_a_test(name: str) -> None:
    assert f"`{name}`" in (EXAMPLES / "README.md").read_text()
    if name in THE_DEMO:
        return
    tests = [Path(__file__), ROOT / "tests" / "spark" / "test_examples.py"]
    module = name.removesuffix(".py")
    assert any(re.search(f'"{name}"|{module}:app', test.read_text()) for test in tests)


@pytest.mark.parametrize("name", sorted({path.name for path in EXAMPLES.glob("*.py")} - THE_DEMO))
def test_an_example_is_short(name: str) -> None:
    lines = (line.strip() for line in (EXAMPLES / name).read_text().splitlines())
    assert sum(bool(line) and not line.startswith("#") for line in lines) <= LINES_MAX
