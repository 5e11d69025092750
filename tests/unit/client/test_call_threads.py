"""The threads of users' plain functions: as many as are wanted, and none keeps the process."""

import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError

import pytest

from turbopump.client.user_function import CallThreads

PATIENCE_S = 20


def test_a_thread_is_made_for_each_call_at_once_up_to_the_count_and_used_again() -> None:
    pool, together = CallThreads(3, "calls"), threading.Barrier(3)
    for _ in range(20):
        futures = [pool.submit(together.wait, PATIENCE_S) for _ in range(3)]
        assert sorted(future.result(PATIENCE_S) for future in futures) == [0, 1, 2]
    assert [thread.name for thread in pool.threads] == ["calls-0", "calls-1", "calls-2"]
    pool.shutdown()
    assert not any(thread.is_alive() for thread in pool.threads)


def test_calls_beyond_the_count_wait_and_a_shutdown_lets_them_run_or_cancels_them() -> None:
    for cancelled in (False, True):
        pool, go_on = CallThreads(1, "calls"), threading.Event()
        first, second = pool.submit(go_on.wait, PATIENCE_S), pool.submit(int, "2")
        pool.shutdown(wait=False, cancel_futures=cancelled)
        with pytest.raises(RuntimeError, match="cannot schedule new futures"):
            pool.submit(int)
        go_on.set()
        assert first.result(PATIENCE_S)
        if cancelled:
            with pytest.raises(CancelledError):
                second.result(PATIENCE_S)
        else:
            assert second.result(PATIENCE_S) == 2


def test_what_a_call_raises_is_its_futures_and_the_thread_goes_on() -> None:
    pool = CallThreads(1, "calls")
    with pytest.raises(SystemExit):
        pool.submit(sys.exit, 3).result(PATIENCE_S)
    assert pool.submit(int, "1").result(PATIENCE_S) == 1
    pool.shutdown()


HANGING = """
import logging, threading
from turbopump.client.user_function import CallThreads
logging.basicConfig()
begun = threading.Event()
pool = CallThreads(2, "turbopump-handler")
pool.submit(lambda: (begun.set(), threading.Event().wait()))
begun.wait()
pool.shutdown(wait=False)
pool.leave_after(0.2)
print("done", flush=True)
"""


def test_a_function_that_hangs_keeps_the_process_for_so_long_and_is_named() -> None:
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", HANGING], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "process ends and stops functions that still run in threads" in done.stderr
    assert "threads=turbopump-handler-0" in done.stderr
    assert time.monotonic() - begun >= 0.2


def test_the_end_of_the_process_waits_for_a_function_that_ends_soon() -> None:
    program = HANGING.replace("threading.Event().wait()", "threading.Event().wait(0.1)").replace(
        "leave_after(0.2)", "leave_after(30)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
