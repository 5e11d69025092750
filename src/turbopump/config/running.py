"""Configuration of a running server. Tools can read and change it.

A request can change only keys declared ``hot``, and changes all of its keys or none. Paths,
addresses and access settings are never hot (CVE-2023-33246, CVE-2023-37582). Secrets are never
shown. Brokers and name servers share this module. Source: apache/rocketmq ``Configuration``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from turbopump.config import properties
from turbopump.config.keys import KeyClass, KeyTable, classify, on_this_machine
from turbopump.config.setting import HIDDEN, SettingsClass, change, effective, hot_keys
from turbopump.errors import ConfigError

log = logging.getLogger(__name__)

SOCKS: Final = "socksProxyConfig"
"""Key without effect whose value may contain a user and a password."""
CHANGE_SIZE_MAX: Final = 32 * 1024
"""Maximum length of a change in characters. All keys of a broker together have half as many."""


class FileDisk(Protocol):
    """File operations for storing the changes of a running configuration.

    A ``Disk`` has them.
    """

    def read_file(self, path: Path) -> bytes | None: ...
    def replace_file(self, path: Path, data: bytes) -> None: ...
    def start(
        self, operation: Callable[[], None], done: Callable[[OSError | None], None]
    ) -> None: ...


class ReadOnlyKeyError(ConfigError):
    """Raised when a key cannot be changed while the server runs."""


@dataclass
class RunningConfiguration:
    """Configuration of a running server. Tools can read and change it.

    - ``config``: the settings. The server reads a hot field each time it uses it.
    - ``table``: all keys of the server.
    - ``path``: the file that stores changes, or None if changes last until the server stops.
    - ``given``: the values in the file for keys that have no effect.
    """

    config: SettingsClass
    table: KeyTable
    path: Path | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Any], None] | None = None
    """Check of the configuration after a change, which raises ConfigError if it is invalid."""
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock for writing the file. Disk work runs in several threads, and two concurrent changes
    would overwrite each other."""

    @classmethod
    def from_file(
        cls,
        config: SettingsClass,
        table: KeyTable,
        file: Path | None,
        store: str = "",
        check: Callable[[Any], None] | None = None,
    ) -> RunningConfiguration:
        """Return the configuration of a server. ``file`` is the configuration file from its start.

        The file also stores later changes. Without a file, changes go to the file that ``store``
        names. RocketMQ: NamesrvStartup sets configStorePath to the file of -c.
        """
        if file is not None:
            return cls(config, table, file, properties.decode(file.read_bytes()), check)
        path = None
        if store:
            path = Path(store).expanduser()
        return cls(config, table, path, check=check)

    def all_texts(self) -> dict[str, str]:
        """Return all keys with their values as text, sorted by key.

        Secrets are hidden. A key without effect has its value from the file, or Apache's default.
        """
        inert = {
            key.name: self.given.get(key.name, on_this_machine(default))
            for key in self.table.values()
            if key.reason and (default := key.default_5) is not None
        }
        if inert.get(SOCKS) not in (None, "", "{}"):
            inert[SOCKS] = HIDDEN
        shown = inert | effective(self.config)
        return {key: shown[key] for key in sorted(shown)}

    def change_keys(self, text: str) -> dict[str, str]:
        """Apply the settings in a properties text. Return the changed keys and values.

        Either all settings are changed or none. Raise ReadOnlyKeyError for a key that cannot be
        changed now, ConfigError for an invalid key or value.
        """
        if len(text) > CHANGE_SIZE_MAX:
            raise ConfigError(
                f"a change of {len(text)} characters is not read: at most {CHANGE_SIZE_MAX} are; "
                "change fewer keys at a time"
            )
        wanted = properties.decode_text(text)
        hot = hot_keys(type(self.config))
        for key in wanted:
            found = classify(key, self.table)
            if found.key_class is KeyClass.UNKNOWN:
                nearest = f"; the nearest is {found.nearest}" if found.nearest else ""
                raise ConfigError(f"this server has no key {key[:80]!r}{nearest}")
            if found.key_class is KeyClass.ACCEPTED:
                raise ReadOnlyKeyError(f"{key} has no effect here: {found.reason}")
            if key not in hot:
                raise ReadOnlyKeyError(
                    f"{key} cannot be changed while the server runs: change its configuration file "
                    f"and start it again. Keys that can: {', '.join(sorted(hot))}"
                )
        change(self.config, wanted, self.check)
        return wanted

    async def write_changes(self, changed: Mapping[str, str], disk: FileDisk | None) -> str | None:
        """Write changed settings to the configuration file, in a thread.

        Return None, or the reason why the changes last only until the server stops.
        """
        path = self.path
        if path is None or disk is None:
            return "in force until the server stops: it was started without a file (-c)"
        done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()

        def write() -> None:
            text = (disk.read_file(path) or b"").decode("utf-8", "replace")
            disk.replace_file(path, properties.with_values(text, changed).encode())

        async with self._writing:
            disk.start(write, done.set_result)
            error = await done
        if error is None:
            return None
        log.error("configuration file cannot be written file=%s cause=%s", path, error)
        return f"in force until the server stops: {path} cannot be written ({error.strerror})"
