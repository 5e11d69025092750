"""Where the log of a command goes: standard error or a file, from a level on.

Its one rule: only commands call it; the library itself adds nothing but a NullHandler, so that an
application decides. The loggers are the standard ones, `turbopump` and below. It must not know what
is logged.
"""

import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from turbopump.errors import ConfigError

LEVELS: Final = ("debug", "info", "warning", "error")
RECOVERY_PROGRESS: Final = "turbopump.broker.housekeeping"
"""The logger of a long recovery: whoever started the command waits for it, and sees it on standard
error whatever the level and file."""

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def log_options(default: str) -> Callable[[CommandT], CommandT]:
    """The options `--log-level` and `--log-file` of a command."""

    def decorate(function: CommandT) -> CommandT:
        level = click.option(
            "--log-level",
            type=click.Choice(LEVELS, case_sensitive=False),
            default=default,
            show_default=True,
        )
        file = click.option(
            "--log-file",
            type=click.Path(dir_okay=False),
            help="Append the log to a file instead of standard error.",
        )
        return level(file(function))

    return decorate


def start_log(level: str, file: str | None) -> None:
    """Send what the package logs from `level` on to a file, or to standard error. Raises
    ConfigError for a file it cannot open."""
    try:
        handler = (
            logging.StreamHandler(sys.stderr)
            if file is None
            else logging.FileHandler(file, encoding="utf-8")
        )
    except OSError as error:
        raise ConfigError(f"the log file {file} cannot be opened: {error.strerror}") from error
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    progress = logging.getLogger(RECOVERY_PROGRESS)
    progress.setLevel(logging.INFO)
    if file is not None:
        on_screen = logging.StreamHandler(sys.stderr)
        on_screen.setFormatter(formatter)
        progress.addHandler(on_screen)
    logger = logging.getLogger("turbopump")
    logger.addHandler(handler)
    logger.setLevel(level.upper())
