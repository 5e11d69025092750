"""Which loop the blocking clients live on: uvloop's where it can be trusted, in processes that are
somebody else's."""

from __future__ import annotations

import _thread
import subprocess
import sys

import pytest

from turbopump import event_loop

pytest.importorskip("uvloop")

WHICH = """
from turbopump.client.loop_thread import the_loop_thread
async def which():
    import asyncio
    return type(asyncio.get_running_loop()).__module__
found = the_loop_thread().call(which)
"""


def says(program: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return run.stderr


def test_the_thread_of_the_blocking_clients_runs_on_uvloop() -> None:
    assert says(f"import sys{WHICH}print(found, file=sys.stderr)") == "uvloop\n"


def test_a_process_without_standard_input_has_asyncios_loop_for_libuv_would_abort() -> None:
    assert (
        says(f"import os, sys; os.close(0){WHICH}print(found, file=sys.stderr)")
        == "asyncio.unix_events\n"
    )


def test_a_process_with_green_threads_has_asyncios_loop_for_libuv_would_stop_them_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = _thread.start_new_thread

    def start_green(*args: object) -> int:
        return real(*args)  # type: ignore[arg-type, call-overload, no-any-return]

    monkeypatch.setattr(_thread, "start_new_thread", start_green)
    loop = event_loop.new_event_loop()
    try:
        assert type(loop).__module__.startswith("asyncio.")
    finally:
        loop.close()


def test_without_uvloop_it_is_asyncios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert event_loop.loop_factory() is None
    loop = event_loop.new_event_loop()
    try:
        assert type(loop).__module__.startswith("asyncio.")
    finally:
        loop.close()
