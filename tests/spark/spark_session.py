"""The one Spark session of a run of tests: a JVM takes up to 20 s to start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from turbopump.spark.session import end_session, rocketmq_session


@contextmanager
def quick_session(warehouse: Path) -> Iterator[SparkSession]:
    """On two cores, quick to start. Its Python workers import this checkout."""
    root = Path(__file__).parents[2]
    with pytest.MonkeyPatch.context() as patch:
        # Spark's Python workers import the plain reader from tests/ and the package from src/.
        path = os.pathsep.join((str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")))
        patch.setenv("PYTHONPATH", path)
        session = rocketmq_session(
            "turbopump tests",
            master="local[2]",
            conf={
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.warehouse.dir": str(warehouse),
                "spark.sql.session.timeZone": "UTC",
                "spark.log.level": "ERROR",
                # Short work on few cores: the second compiler and the parallel collector cost more
                # than they save.
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            },
        )
        yield session
        end_session(session)
