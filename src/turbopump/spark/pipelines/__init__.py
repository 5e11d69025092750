"""Pipelines of `turbopump pipeline NAME`, as functions for notebooks and schedulers.

The public names are imported on first use, because they import pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from turbopump.spark import imported

if TYPE_CHECKING:
    from turbopump.spark.pipelines.archiving import ArchiveReport, archive, compact
    from turbopump.spark.pipelines.bodies import avro_bodies, json_bodies
    from turbopump.spark.pipelines.capturing import CdcReport, cdc
    from turbopump.spark.pipelines.querying import query
    from turbopump.spark.pipelines.replaying import ReplayReport, replay

__all__ = [
    "ArchiveReport",
    "CdcReport",
    "ReplayReport",
    "archive",
    "avro_bodies",
    "cdc",
    "compact",
    "json_bodies",
    "query",
    "replay",
]

_HOMES: Final = {
    "ArchiveReport": "archiving",
    "archive": "archiving",
    "compact": "archiving",
    "avro_bodies": "bodies",
    "json_bodies": "bodies",
    "CdcReport": "capturing",
    "cdc": "capturing",
    "query": "querying",
    "ReplayReport": "replaying",
    "replay": "replaying",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(imported(f"{__name__}.{_HOMES[name]}"), name)
