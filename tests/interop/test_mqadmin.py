"""Apache's mqadmin against our servers and Apache's: each command that changes something, then its
counterpart that shows it, ends on ours as on theirs."""

from __future__ import annotations

import time
from pathlib import Path

from tests.interop.mqadmin_commands import CHANGES, both
from tests.interop.tools import skipping_without_tools


def test_commands_that_change_something_end_as_with_apaches_servers(
    tmp_path: Path, summary: list[str]
) -> None:
    started = time.monotonic()
    with skipping_without_tools(), both(tmp_path) as sides:
        differences = {step.command: found for step in CHANGES if (found := sides.difference(step))}
    assert differences == {}
    summary.append(f"mqadmin, {len(CHANGES)} commands: {time.monotonic() - started:.1f} s")
