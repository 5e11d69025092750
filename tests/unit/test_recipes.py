"""Programs of docs/guide/recipes.md that need more than a Python to run in: a Django project, with
gunicorn, and a notebook."""

from __future__ import annotations

import ast
import inspect
import os
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.loops import in_loop
from tests.topic_contents import stored, uncommitted
from tests.unit.guide_page import GUIDE, PATIENCE, Running
from tests.waits import until

from turbopump.testing import BrokerThread

PAGE = (GUIDE / "recipes.md").read_text("utf-8")
SETTINGS = """
import os
INSTALLED_APPS += ["orders"]
MIDDLEWARE.remove("django.middleware.csrf.CsrfViewMiddleware")  # there is no form
ROCKETMQ = os.environ["NAMESRV_ADDR"]
"""
URLS = """
from django.urls import path
from orders.views import place
urlpatterns = [path("orders", place)]
"""
NOBODY = "127.0.0.1:1"
"""Address of a name server that is not there."""


def blocks(section: str) -> list[str]:
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def environment(namesrv: str, home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "HOME": str(home),  # gunicorn has a socket there
        "NAMESRV_ADDR": namesrv,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONUNBUFFERED": "1",
    }


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Directory of a Django project with the page's app and its table, made without a broker."""
    pytest.importorskip("django")
    pytest.importorskip("gunicorn")
    run_django(tmp_path, "-m", "django", "startproject", "shop", ".")
    for block in blocks("Django"):
        file = tmp_path / block.partition("\n")[0].removeprefix("# ")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block)
    with (tmp_path / "shop" / "settings.py").open("a") as settings:
        settings.write(SETTINGS)
    (tmp_path / "shop" / "urls.py").write_text(URLS)
    run_django(tmp_path, "manage.py", "migrate", "--run-syncdb")
    return tmp_path


def run_django(directory: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env=environment(NOBODY, directory),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def running(command: str, ready: str, project: Path, broker: BrokerThread) -> Iterator[Running]:
    """Run a command until the block ends, and stop it with SIGTERM."""
    process = Running(
        f'"{sys.executable}" {command}',
        re.compile(ready).search,
        project,
        environment(broker.namesrv, project),
    )
    try:
        process.wait_until_enough()
        assert re.search(ready, process.printed), process.printed
        yield process
    finally:
        os.kill(process.process.pid, signal.SIGTERM)
        code = process.end()
    assert code == 0, process.printed


def place_order(address: str, item: str) -> None:
    with urllib.request.urlopen(
        f"http://{address}/orders", f"item={item}".encode(), timeout=PATIENCE
    ) as answer:
        assert answer.status == 201


def billed(project: Path) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(project / "db.sqlite3")) as connection:
        return connection.execute("select item, billed from orders_order order by id").fetchall()


@in_loop
async def test_django_sends_from_gunicorns_workers_and_bills_in_a_command(
    project: Path, rocketmq: BrokerThread
) -> None:
    for preload, item in (("", "book"), ("--preload", "pen")):
        server = f"-m gunicorn shop.wsgi -w 1 -b 127.0.0.1:0 {preload}"
        with running(server, "Booting worker", project, rocketmq) as gunicorn:
            listening = re.search(r"Listening at: http://(\S+)", gunicorn.printed)
            assert listening
            place_order(listening[1], item)
    messages = {message.body: message.keys for message in stored(rocketmq, "orders")}
    assert messages == {b"book": ["1"], b"pen": ["2"]}
    assert billed(project) == [("book", 0), ("pen", 0)]

    with running("manage.py bill_orders", "", project, rocketmq):
        await until(lambda: billed(project) == [("book", 1), ("pen", 1)])
    assert uncommitted(rocketmq, "orders", "billing") == 0


@in_loop
async def test_the_cells_of_the_notebook_run_one_after_the_other(
    rocketmq: BrokerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, object] = {}
    for cell in blocks("Notebooks"):
        text = cell.replace("127.0.0.1:9876", rocketmq.namesrv)
        code = compile(text, "a cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        outcome = eval(code, names)
        if inspect.iscoroutine(outcome):
            await outcome
    assert capsys.readouterr().out == "a first note\n"
    bodies = sorted(message.body for message in stored(rocketmq, "notes"))
    assert bodies == [b"a first note", b"a second note"]
