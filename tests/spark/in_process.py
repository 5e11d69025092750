"""Stand-in for a Spark session that runs tasks in this process, one after the other.

It knows only what archives need: ``range(…).mapInArrow(…).collect()``. A JVM takes seconds to
start, and most tests of pipelines are not about Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

Batches = Iterator[pa.RecordBatch]


class InProcess:
    """Session with two tasks at a time, as far as plans are concerned."""

    sparkContext = SimpleNamespace(defaultParallelism=2)  # noqa: N815

    def range(self, begin: int, end: int, step: int, _tasks: int) -> Any:
        numbers = [[number] for number in range(begin, end, step)]

        def map_in_arrow(task: Callable[[Batches], Batches], _schema: str) -> Any:
            def collect() -> list[dict[str, Any]]:
                batches = [pa.record_batch({"id": each}) for each in numbers]
                return [
                    row for each in batches for out in task(iter([each])) for row in out.to_pylist()
                ]

            return SimpleNamespace(collect=collect)

        return SimpleNamespace(mapInArrow=map_in_arrow)
