"""RocketMQ topics in Spark: ``format("rocketmq")``. The public names are imported on first use:
they bring pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbopump.spark.session import end_session, rocketmq_session

__all__ = ["end_session", "rocketmq_session"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from turbopump.spark import session
    except ModuleNotFoundError as error:
        text = (
            f"Spark support needs {error.name}, which is not installed: pip install "
            "'.[spark]' in a checkout of Turbopump"
        )
        raise ModuleNotFoundError(text, name=error.name) from None

    return getattr(session, name)
