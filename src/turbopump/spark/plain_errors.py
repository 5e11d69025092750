"""What people see of an error: its sentence, without the traceback of Spark's Python worker.

Spark shows an error of a data source as the traceback of the process in which it ran, with the
sentence that helps as its last line. PySpark leaves the traceback out where the environment of that
process has ``SPARK_HIDE_TRACEBACK`` (pyspark/util.py, ``handle_worker_exception``). A worker ends
after an error, so setting it for an error of ours hides nobody else's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from turbopump.errors import TurbopumpError

P = ParamSpec("P")
T = TypeVar("T")

_WORKERS: Final = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.")
"""Modules that Spark runs as the main one of a worker."""


@contextmanager
def hidden_traceback() -> Iterator[None]:
    """In Spark's workers a TurbopumpError that leaves this block is shown without a traceback."""
    try:
        yield
    except TurbopumpError:
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        if spec is not None and spec.name.startswith(_WORKERS):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def plain_errors(function: Callable[P, T]) -> Callable[P, T]:
    """``function``, within ``hidden_traceback``."""

    @wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        with hidden_traceback():
            return function(*args, **kwargs)

    return inside
