"""One Spark session for all tests of Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.patient import wait_for_servers
from tests.spark.spark_session import quick_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the Spark tests last, one after the other. Spark ends a Python worker that was idle for a
    minute, and each new worker costs a second."""
    items.sort(key=lambda item: "spark" in getattr(item, "fixturenames", ()))


@pytest.fixture(autouse=True)
def _patience_with_servers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        wait_for_servers(patch.setitem)
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with quick_session(tmp_path_factory.mktemp("warehouse")) as session:
        yield session
