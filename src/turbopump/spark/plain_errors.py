"""Readable output of Spark's Python workers.

Errors become sentences without a traceback, warnings are shown, and errors of pipes that Spark has
closed are not.

Spark shows an error of a data source as the traceback of its process, with the helpful sentence as
the last line. PySpark leaves the traceback out if the environment of that process has
``SPARK_HIDE_TRACEBACK`` (pyspark/util.py, ``handle_worker_exception``). A worker ends after an
error, so setting the variable for an error of ours hides no other error's traceback.

A worker configures no logging, so warnings of a library would be lost. Here they go to standard
error, which Spark copies into its own log.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final, ParamSpec, TextIO, TypeVar

from turbopump.errors import TurbopumpError

P = ParamSpec("P")
T = TypeVar("T")

_WORKERS: Final = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.")
"""Main modules of Spark's Python workers."""


def is_worker() -> bool:
    """Return True if this process is a Python worker of Spark."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith(_WORKERS)


class _OnStandardError(logging.StreamHandler[TextIO]):
    """Logging handler that writes to standard error, unless logging is configured.

    Spark configures logging if ``spark.sql.pyspark.worker.logging.enabled`` is set. The handlers of
    that configuration then write the records.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def show_warnings() -> None:
    """Write the warnings of this package to standard error."""
    handler = _OnStandardError()
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S")
    )
    logging.getLogger("turbopump").addHandler(handler)


def hide_broken_pipes() -> None:
    """Keep PySpark's daemon from printing a traceback for each pipe that Spark has closed.

    Spark closes the pipe of a task when it has enough rows (``limit``, ``show``, ``take``), and the
    pipe of an idle worker. The traceback is printed by ``manager`` in pyspark/daemon.py.
    """
    usual = traceback.print_exc

    def print_others(*args: Any, **kwargs: Any) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            usual(*args, **kwargs)

    traceback.print_exc = print_others


if is_worker():
    show_warnings()
    hide_broken_pipes()


@contextmanager
def hidden_traceback() -> Iterator[None]:
    """Hide the traceback if a TurbopumpError leaves the block.

    This applies only in a Python worker of Spark.
    """
    try:
        yield
    except TurbopumpError:
        if is_worker():
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def plain_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function, so that its errors appear in Spark without a traceback.

    The function runs within ``hidden_traceback``.
    """

    @wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        with hidden_traceback():
            return function(*args, **kwargs)

    return inside
