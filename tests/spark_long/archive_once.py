"""One run of `archive` in a process of its own, which may kill itself at a step:

python -m tests.spark_long.archive_once LAKE NAME_SERVER FORMAT MASTER [STEP COUNT]
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict

from turbopump.spark import end_session, rocketmq_session
from turbopump.spark.pipelines import archive, json_bodies


def main() -> int:
    lake, name_server, format_name, master, *kill = sys.argv[1:]
    left = int(kill[1]) if kill else 0

    def at_step(name: str) -> None:
        nonlocal left
        if kill and name == kill[0]:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    spark = rocketmq_session(
        "archive",
        master=master,
        conf={
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    report = archive(
        lake,
        ["T"],
        name_server=name_server,
        spark=spark,
        format=format_name,
        bodies=json_bodies("n int not null"),
        rows_per_batch=1500,
        at_step=at_step,
    )
    end_session(spark)
    print(json.dumps({**asdict(report), "agrees": report.agrees}))
    return 0 if report.agrees else 1


if __name__ == "__main__":
    sys.exit(main())
