"""One Spark session for all tests of Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.spark.spark_session import quick_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with quick_session(tmp_path_factory.mktemp("warehouse")) as session:
        yield session
