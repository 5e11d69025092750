"""Where Spark finds ``format("rocketmq")``: it imports every top-level ``pyspark_*`` module and
takes its ``DefaultSource``.

Nothing is imported until Spark asks for that name, for other people's sessions look at this module
too.
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
