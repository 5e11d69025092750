"""Table of configuration keys. It has the keys of Apache's servers (5.3.3 and 4.9.8), and
Turbopump's own keys.

A key has an effect (a configuration field reads it), is accepted without effect, or is unknown.
Apache's keys are data: `apache_keys.txt`. The values in use are unknown here.
"""

import enum
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import get_type_hints

from turbopump.config.setting import LONG_MAX, SettingsClass, settings_of


class KeyClass(enum.Enum):
    """Effect of a configuration key on this server."""

    HONOURED = "honoured"
    ACCEPTED = "accepted without effect"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Key:
    """Configuration key of Apache's servers or of Turbopump.

    - ``default_5``, ``default_4``: defaults of Apache 5.3.3 and 4.9.8, or None if that version does
      not have the key.
    - ``reason``: the reason why the key has no effect, or empty if the key has an effect.
    - ``secret``: True if the value is never shown.
    """

    name: str
    java_type: str
    default_5: str | None
    default_4: str | None
    reason: str
    secret: bool = False

    @property
    def own(self) -> bool:
        """True if the key is Turbopump's own, unknown to Apache's servers."""
        return self.default_5 is None and self.default_4 is None


@dataclass(frozen=True, slots=True)
class KeyFinding:
    """Result of looking up a key from a configuration file.

    - ``reason``: the reason why the key has no effect, or empty.
    - ``nearest``: the most similar known key if the key is unknown, or empty.
    """

    key_class: KeyClass
    reason: str = ""
    nearest: str = ""


KeyTable = Mapping[str, Key]


def classify(name: str, table: KeyTable) -> KeyFinding:
    """Look up a key from a configuration file, and return the key's effect."""
    if key := table.get(name):
        return (
            KeyFinding(KeyClass.ACCEPTED, reason=key.reason)
            if key.reason
            else KeyFinding(KeyClass.HONOURED)
        )
    from difflib import get_close_matches  # only a mistyped key needs it

    by_lower = {known.lower(): known for known in table}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return KeyFinding(KeyClass.UNKNOWN, nearest=by_lower[near[0]] if near else "")


def is_default(key: Key, text: str) -> bool:
    """Return True if a text is Apache's default for a key on this machine.

    The defaults of 5.3.3 and 4.9.8 both count. A default may depend on the number of cores or on an
    environment variable.
    """
    return any(
        default.startswith("variable ") or text == on_this_machine(default)
        for default in (key.default_5, key.default_4)
        if default is not None
    )


def on_this_machine(default: str) -> str:
    """Evaluate a default of ``apache_keys.txt`` for this machine."""
    if default.startswith("variable "):
        return os.environ.get(default.removeprefix("variable "), "")
    if "cores" not in default:
        return default
    # an expression of apache_keys.txt, such as: max(8 + cores * 2, 4 * min(cores, 4))
    names = {"cores": os.cpu_count() or 1, "min": min, "max": max}
    return str(eval(default, {"__builtins__": {}}, names))


def key_table(config: type[SettingsClass], *parts: str, only_5: str = "") -> KeyTable:
    """Return the table of one server's keys.

    It contains the keys of some parts of `apache_keys.txt`, and the configuration's own keys. Own
    keys are declared as such, or are in none of the parts because Apache's server lacks them. The
    4.9.8 server does not read the parts in `only_5`, a list separated by blanks.
    """
    table: dict[str, Key] = {}
    for part, line, reason in _lines():
        if part in parts:
            key = _read_line(line, reason, old=part not in only_5.split())
            assert key.name not in table, f"key={key.name} stands in two parts"
            table[key.name] = key
    types = get_type_hints(config)
    for name, known in settings_of(config):
        if known.own or known.key not in table:
            wide = "long" if known.high == LONG_MAX else "int"
            java_type = {bool: "boolean", int: wide}.get(types[name], "String")
            table[known.key] = Key(known.key, java_type, None, None, "")
        if known.secret:
            table[known.key] = replace(table[known.key], secret=True)
    return table


def _lines() -> Iterator[tuple[str, str, str]]:
    """For each key of `apache_keys.txt`, yield its part, its line and its reason.

    The reason stands in a line above the key's.
    """
    part = reason = ""
    from importlib.resources import files  # clients never read it

    text = files("turbopump.config").joinpath("apache_keys.txt").read_text("utf-8")
    for line in text.splitlines():
        if line.startswith("["):
            part = line[1 : line.index("]")]
        elif line == "honoured:":
            reason = ""
        elif line.startswith("accepted: "):
            reason = line.removeprefix("accepted: ")
        elif line.startswith("  "):
            yield part, line, reason


def _read_line(line: str, reason: str, *, old: bool) -> Key:
    name, java_type, new, before = (part.strip() for part in line.split("  ") if part.strip())
    if not old:
        before = "-"
    elif before == "=":
        before = new
    return Key(name, java_type, _default(new), _default(before), reason)


def _default(text: str) -> str | None:
    return {"-": None, "''": ""}.get(text, text)
