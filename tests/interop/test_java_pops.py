"""Java's push consumers that pop from our broker, which tells them to: assignment, receipts,
acknowledgements, retries."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.interop.foreign import ForeignClient, java_client, run
from tests.interop.our_servers import patient_turbopump
from tests.interop.tools import skipping_without_tools

FIVE = ForeignClient("java-5.3.3", ("push_pops",), partial(java_client, "5.3.3", program="Popping"))


def test_javas_push_consumers_pop_everything_and_get_again_what_they_did_not_do(
    tmp_path: Path, summary: list[str]
) -> None:
    with skipping_without_tools():
        FIVE.command()  # built before anything is started
    with patient_turbopump(tmp_path / "servers") as servers:
        outcome = run(FIVE, servers.namesrv, "pops", tmp_path / "java")
        log = servers.log()
    report = outcome.reports.get("push_pops")
    assert report, f"{outcome.ending()}\n{outcome.stderr}"
    assert report["ok"], f"{report['detail']}\n{outcome.stderr}\n{log[-3000:]}"
    assert "Traceback" not in log, log[-5000:]
    assert " ERROR " not in log, log[-5000:]
    summary.append(f"java-5.3.3 push_pops {report['seconds']:>6} s  {report['detail']}")
