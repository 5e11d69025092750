"""``format("rocketmqPlain")``: the same source with a tuple per row, for comparing rows and CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType
from tests.spark.plain_twin import rows

from turbopump.spark.batch import BatchReader
from turbopump.spark.cluster import Cluster
from turbopump.spark.reading import RangesPartition, read_range
from turbopump.spark.source import RocketMQDataSource


class PlainReader(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, RangesPartition)
        options = self._options
        with Cluster(options.name_servers) as cluster:
            for wanted in partition.ranges:
                for chunk in read_range(cluster, wanted, options):
                    yield from rows(bytes(chunk), wanted.queue.broker_name, options.columns)


class PlainDataSource(RocketMQDataSource):
    @classmethod
    def name(cls) -> str:
        return "rocketmqPlain"

    def reader(self, schema: StructType) -> PlainReader:
        return PlainReader(self._checked_options(schema))
