"""Destination of a command's log: standard error or a file, from a level on, as text or JSON.

Only commands set it. The library itself adds only a NullHandler, so that an application decides.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from logging.handlers import WatchedFileHandler
from typing import Any, Final, TypeVar

import click

from turbopump.cli.log_lines import JsonFormatter, LineFormatter, SentenceFormatter
from turbopump.errors import ConfigError

T = TypeVar("T")

LEVELS: Final = ("debug", "info", "warning", "error")
FORMS: Final = ("text", "json")
WAITED_FOR: Final = {
    "turbopump.broker.recovery_progress": logging.INFO,
    "turbopump.client.consumer.rebalance": logging.WARNING,
}
"""Loggers, and their lowest level, whose lines always go to standard error too, with any log level
and log file. They report what a user waits for: a long recovery, a missing topic."""


def log_options(
    default: str, *, plain: bool = False
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return a decorator that adds the options `--log-level`, `--log-format` and `--log-file`.

    The log starts before the command runs. With ``plain``, warnings are sentences for a person at
    the terminal.
    """

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(function)
        def logged(log_level: str, log_format: str, log_file: str | None, **given: Any) -> T:
            if (
                click.get_current_context().invoked_subcommand is None
            ):  # else the subcommand starts the log
                start_log(log_level, log_file, log_format, plain=plain)
            return function(**given)

        level = click.option(
            "--log-level", type=click.Choice(LEVELS, case_sensitive=False), default=default
        )
        form = click.option(
            "--log-format",
            type=click.Choice(FORMS),
            default="text",
            help="Lines of text with key=value, or a JSON object on each line.",
        )
        file = click.option(
            "--log-file",
            type=click.Path(dir_okay=False),
            help="Append the log to a file instead of standard error.",
        )
        return level(form(file(logged)))

    return decorate


def start_log(level: str, file: str | None, form: str = "text", *, plain: bool = False) -> None:
    """Write the log of turbopump to a file, or to standard error if ``file`` is None.

    ``level`` is the lowest level that is written, and ``form`` one of ``FORMS``. Raises ConfigError
    if the file cannot be opened.
    """
    try:
        if file is None:
            handler: logging.Handler = logging.StreamHandler(sys.stderr)
        else:
            handler = FollowedFileHandler(file, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the log file {file} cannot be opened: {error.strerror}") from error
    formatter: logging.Formatter = JsonFormatter() if form == "json" else LineFormatter()
    on_screen = formatter
    if plain and form == "text" and level.lower() in ("warning", "error"):
        on_screen = SentenceFormatter()
    handler.setFormatter(on_screen if file is None else formatter)
    for name, least in WAITED_FOR.items():
        waited_for = logging.getLogger(name)
        waited_for.setLevel(min(least, getattr(logging, level.upper())))
        if file is not None:
            screen = logging.StreamHandler(sys.stderr)
            screen.setFormatter(on_screen)
            screen.setLevel(least)
            waited_for.addHandler(screen)
    logger = logging.getLogger("turbopump")
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    of_loop = logging.getLogger("asyncio")  # tasks that failed, transports that broke
    of_loop.addHandler(handler)
    of_loop.setLevel(logging.WARNING)


class FollowedFileHandler(WatchedFileHandler):
    """Handler of a log file. If the file is moved or deleted, the handler creates a new file.

    logrotate moves log files. Lines that cannot be written (a full disk, a missing directory) go to
    standard error.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # the file cannot be checked or created
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
            return
        with suppress(OSError, ValueError):
            sys.stderr.write(self.format(record) + "\n")
