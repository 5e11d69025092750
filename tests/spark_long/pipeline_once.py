"""One run of a pipeline in a process of its own, which may kill itself at a step:

python -m tests.spark_long.pipeline_once archive LAKE NAME_SERVER FORMAT MASTER [STEP COUNT]
python -m tests.spark_long.pipeline_once archive-as-is LAKE NAME_SERVER FORMAT MASTER [STEP COUNT]
python -m tests.spark_long.pipeline_once replay LAKE NAME_SERVER TARGET MASTER [STEP COUNT]

The last line that it prints is its report. ``archive`` reads the bodies as JSON, so messages go
through Spark's JVM; ``archive-as-is`` leaves them, and a Python task reads and writes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict

from tests.stand_ins import does_nothing

from turbopump.spark import end_session, rocketmq_session
from turbopump.spark.pipelines import ArchiveReport, ReplayReport, archive, json_bodies, replay


def main() -> int:
    pipeline, lake, name_server, name, master, *kill = sys.argv[1:]
    spark = rocketmq_session(
        pipeline,
        master=master,
        conf={
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    at_step = killer(*kill) if kill else does_nothing
    report: ArchiveReport | ReplayReport
    if pipeline in ("archive", "archive-as-is"):
        report = archive(
            lake,
            ["T"],
            name_server=name_server,
            spark=spark,
            format=name,
            bodies=json_bodies("n int not null") if pipeline == "archive" else None,
            rows_per_batch=1500,
            at_step=at_step,
        )
    else:
        report = replay(
            lake,
            "T",
            name,
            name_server=name_server,
            spark=spark,
            rows_per_batch=1,  # a batch for each second
            # one by one, so that there is a middle
            options={"sendBatchSize": "1", "maxInFlight": "1"},
            at_step=at_step,
        )
    end_session(spark)
    print(json.dumps({**asdict(report), "agrees": report.agrees}))
    return 0 if report.agrees else 1


def killer(step: str, count: str) -> Callable[[str], None]:
    """Ends this process by SIGKILL when it comes to a step for the ``count``-th time."""
    left = int(count)

    def at_step(name: str) -> None:
        nonlocal left
        left -= name == step
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return at_step


if __name__ == "__main__":
    sys.exit(main())
