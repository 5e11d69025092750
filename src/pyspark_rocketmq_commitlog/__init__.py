"""Entry point for Spark's ``format("rocketmqCommitlog")``, like ``pyspark_rocketmq``.

A second module is needed, because Spark uses one ``DefaultSource`` of a module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbopump.spark.source import CommitLogDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name == "DefaultSource":
        from turbopump.spark.source import CommitLogDataSource

        return CommitLogDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
