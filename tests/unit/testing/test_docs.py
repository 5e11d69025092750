"""docs/explanations/simulation.md says what is true: its examples run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import turbopump.testing

PAGE = (Path(__file__).parents[3] / "docs" / "explanations" / "simulation.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs_as_it_stands(number: int, tmp_path: Path) -> None:
    file = tmp_path / "test_example.py"
    file.write_text(EXAMPLES[number])
    command = [sys.executable, "-W", "error", str(file)]
    if "def test_" in EXAMPLES[number]:
        (tmp_path / "pytest.ini").write_text("[pytest]\nrocketmq_scope = function\n")
        plugin = ["-p", "no:turbopump", "-p", "turbopump.testing.pytest_plugin"]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *plugin,
            str(file),
        ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_public_name_of_the_package_can_be_imported() -> None:
    assert [
        name for name in turbopump.testing.__all__ if not hasattr(turbopump.testing, name)
    ] == []
