"""Apache's mqadmin against our servers and Apache's: each command that changes something, then its
counterpart that shows it, ends on ours as on theirs, but for those that ours refuses in words."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.interop.accounts import ADMIN
from tests.interop.mqadmin_commands import ACCOUNTS, CHANGES, OTHERS, REFUSED, Step, both
from tests.interop.tools import skipping_without_tools

from turbopump.broker.handlers.unserved import UNSERVED


@pytest.mark.parametrize("steps", [CHANGES, OTHERS], ids=["changes", "others"])
def test_commands_end_as_with_apaches_servers(
    tmp_path: Path, summary: list[str], steps: tuple[Step, ...]
) -> None:
    started = time.monotonic()
    with skipping_without_tools(), both(tmp_path) as sides:
        differences = {step.command: found for step in steps if (found := sides.difference(step))}
        if steps is OTHERS:
            before = sides.on_ours("topicList")
            printed = {command: sides.on_ours(command) for command in REFUSED}
            assert sides.on_ours("topicList") == before
            missing = [
                command
                for command, code in REFUSED.items()
                if UNSERVED[code] not in printed[command]
            ]
            assert missing == []
    assert differences == {}
    seconds = time.monotonic() - started
    summary.append(f"mqadmin, {len(steps)} commands: {seconds:.1f} s, twice {sides.late}")


def test_commands_for_users_and_policies_end_as_with_apaches_broker(
    tmp_path: Path, summary: list[str]
) -> None:
    started = time.monotonic()
    with skipping_without_tools(), both(tmp_path, accounts=True) as sides:
        differences = {
            step.command: found for step in ACCOUNTS if (found := sides.difference(step))
        }
        sides.on_ours("createUser -b $broker -u ann -p anns-secret")
        listed = sides.on_ours("listUser -b $broker")
        copied = sides.on_ours("copyUser -f $broker -t $namesrv -u ann")
    assert differences == {}
    assert [word for word in ("anns-secret", ADMIN.secret_key) if word in listed] == []
    assert "turbopump auth export" in copied
    seconds = time.monotonic() - started
    summary.append(f"mqadmin, {len(ACCOUNTS)} commands for users and policies: {seconds:.1f} s")
