"""Examples on the pages about Spark run as they are, and print what the pages say."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.spark_page import SparkPage
from tests.unit.guide_page import SPARK_PAGES


@pytest.mark.parametrize("name", SPARK_PAGES)
def test_a_page_does_what_it_shows(spark: SparkSession, tmp_path: Path, name: str) -> None:
    assert spark.getActiveSession() is not None
    assert SparkPage(name, tmp_path).try_it() > 0
