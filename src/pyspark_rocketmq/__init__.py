"""Entry point for Spark's ``format("rocketmq")``.

Spark imports every top-level ``pyspark_*`` module and uses its ``DefaultSource``. Nothing else is
imported until Spark reads that name, because every PySpark session in this environment imports this
module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbopump.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name == "DefaultSource":
        from turbopump.spark.source import RocketMQDataSource

        return RocketMQDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
