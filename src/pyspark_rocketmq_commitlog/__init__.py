"""Entry point for Spark's ``format("rocketmqCommitlog")``. It works like ``pyspark_rocketmq``.

This entry point needs a module of its own, because Spark uses only one ``DefaultSource`` of each
module.
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
