"""RocketMQ topics in Spark, as ``format("rocketmq")``.

The public names are imported on first use, because they import pyspark.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Final

from turbopump.errors import MissingExtraError

if TYPE_CHECKING:
    from turbopump.spark.progress import LagListener, LagReport, lag, serve_stream_metrics
    from turbopump.spark.session import end_session, rocketmq_session

__all__ = [
    "LagListener",
    "LagReport",
    "end_session",
    "lag",
    "rocketmq_session",
    "serve_stream_metrics",
]

_MODULES: Final = {
    "LagListener": "progress",
    "LagReport": "progress",
    "end_session": "session",
    "lag": "progress",
    "rocketmq_session": "session",
    "serve_stream_metrics": "progress",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(imported(f"turbopump.spark.{_MODULES[name]}"), name)


def imported(module: str) -> ModuleType:
    """Import a turbopump module that needs pyspark or pyarrow.

    Raises MissingExtraError if one of these packages is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("turbopump"):
            raise
        package = str(error.name).partition(".")[0]
        raise MissingExtraError(
            f"Spark support needs {package}, which is not installed: "
            "pip install 'turbopump[spark]'",
            name=error.name,
        ) from None
