"""A long recovery is seen by whoever started the broker, wherever its log goes."""

import subprocess
import sys
from pathlib import Path

import pytest

from turbopump.broker.recovery_progress import LOGGER
from turbopump.cli.log_output import WAITED_FOR

SCRIPT = """
import logging, sys
from turbopump.cli.log_output import start_log
start_log(sys.argv[1], sys.argv[2] or None)
logging.getLogger(sys.argv[3]).info("half of it")
logging.getLogger("turbopump.broker.broker").info("of no interest")
"""


@pytest.mark.parametrize("level", ["error", "warning"])
@pytest.mark.parametrize("to_file", [True, False])
def test_the_progress_of_recovery_is_on_standard_error_once_whatever_level_and_file(
    tmp_path: Path, level: str, to_file: bool
) -> None:
    assert LOGGER in WAITED_FOR
    file = tmp_path / "broker.log"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, level, str(file) if to_file else "", LOGGER],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("half of it") == 1
    assert "of no interest" not in done.stderr
    assert not to_file or file.read_text().count("half of it") == 1
