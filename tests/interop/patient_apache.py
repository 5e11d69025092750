"""Apache's servers for as long as a block lasts, patient with a slow machine.

The one rule: nobody reads their stores, so they are killed at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.apache import ApacheCluster
from tests.interop.tools import skipping_without_tools

# On a busy machine Apache's broker refuses what waited 200 ms, and everything for a while after an
# append that took a second.
PATIENT: dict[str, str | int | bool] = {
    "waitTimeMillsInSendQueue": 60_000,
    "waitTimeMillsInPullQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 60_000,
}


@contextmanager
def patient_apache(
    version: str, directory: Path, **settings: str | int | bool
) -> Iterator[ApacheCluster]:
    """A name server and a broker with their data in `directory`; `settings` are further lines of
    broker.conf. Without Java or Maven the test is skipped.
    """
    cluster = ApacheCluster(
        version, directory=directory, heap="384m", broker_config={**PATIENT, **settings}
    )
    try:
        with skipping_without_tools():
            cluster.start()
        yield cluster
    finally:
        cluster.kill()
