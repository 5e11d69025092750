"""From a file on disk to keys and texts, and what the operator is told about keys that do nothing.

Its one rule: a strange key never stops a server. It must not know what a key means.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from turbopump.config import properties
from turbopump.config.keys import BROKER_KEYS, NAMESRV_KEYS, KeyClass, classify
from turbopump.errors import ConfigError

log = logging.getLogger("turbopump.config")

_FILE_SIZE_MAX = 4 * 1024 * 1024


def read_properties(path: Path | str) -> dict[str, str]:
    """The keys and values of a properties file; raises `ConfigError` when it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read(_FILE_SIZE_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"the configuration file {path} cannot be read: {error.strerror}"
        ) from error
    if len(data) > _FILE_SIZE_MAX:
        raise ConfigError(
            f"the configuration file {path} is longer than {_FILE_SIZE_MAX} bytes: "
            "a properties file is expected"
        )
    try:
        return properties.decode(data)
    except ConfigError as error:
        raise ConfigError(f"the configuration file {path}: {error}") from None


def report(path: Path | str, texts: Mapping[str, str], *, broker: bool) -> None:
    """Log each key of a file that has no effect or is unknown. Values are never logged: they may be
    secrets."""
    table = BROKER_KEYS if broker else NAMESRV_KEYS
    for key in texts:
        found = classify(key, table)
        if found.key_class is KeyClass.UNKNOWN:
            log.warning(
                "unknown key file=%s key=%s%s",
                path,
                key,
                f" nearest={found.nearest}" if found.nearest else "",
            )
        elif found.key_class is KeyClass.ACCEPTED:
            log.info("key without effect file=%s key=%s reason=%s", path, key, found.reason)
