"""What Apache's mqadmin says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.interop.apache import NEWEST, QUICK_START, fetch_jars, java
from tests.interop.our_clients import PATIENCE_SECONDS


def traces_by_mqadmin(namesrv: str, msg_id: str, directory: Path) -> str:
    command = [java(), *QUICK_START, f"-Duser.home={directory}", "-cp", f"{fetch_jars(NEWEST)}/*"]
    command += [
        "org.apache.rocketmq.tools.command.MQAdminStartup",
        "queryMsgTraceById",
        "-n",
        namesrv,
        "-i",
        msg_id,
    ]
    environment = {**os.environ, "ROCKETMQ_HOME": str(directory)}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        cwd=directory,
        env=environment,
    )
    return done.stdout + done.stderr
