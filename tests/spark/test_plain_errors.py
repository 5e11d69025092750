"""Output of Spark's Python workers."""

from __future__ import annotations

import traceback

import pytest

from turbopump.spark.plain_errors import hide_broken_pipes


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (BrokenPipeError(32, "Broken pipe"), False),
        (ConnectionResetError(104, "reset"), True),
        (ValueError("x"), True),
    ],
)
def test_a_worker_whose_pipe_spark_has_closed_prints_no_traceback(
    error: Exception,
    shown: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(traceback, "print_exc", traceback.print_exc)  # put back at the end
    hide_broken_pipes()
    try:
        raise error
    except Exception:
        traceback.print_exc()
    assert (type(error).__name__ in capsys.readouterr().err) is shown
