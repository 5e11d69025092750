"""Declarations of settings: key, unit and bounds of each configuration field. Values are converted
from and to text. The keys themselves are unknown here."""

import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints

from turbopump.errors import ConfigError

HIDDEN = "******"
"""Text shown in place of a secret."""
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """Key, unit, bounds and meaning of one setting.

    The type and the default are those of the field that declares the setting.
    """

    key: str
    about: str
    unit: str = ""
    low: int = 0
    high: int = INT_MAX
    only: tuple[object, ...] = ()
    otherwise: str = ""
    own: bool = False
    """True for a key of Turbopump that Apache's servers do not have."""
    held: tuple[int, int] | None = None
    hot: bool = False
    """True if the setting can change while the server runs. The server reads such a setting at each
    use."""
    secret: bool = False
    """True if the value is never shown."""
    group: str = ""
    """Name of the group of settings, for example in the log."""


class SettingsClass(Protocol):
    """Protocol of a frozen dataclass whose fields are declared with `setting`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Config = TypeVar("Config", bound=SettingsClass)


def setting(
    default: Any,
    about: str,
    unit: str = "",
    *,
    key: str = "",
    low: int = 0,
    high: int = INT_MAX,
    only: tuple[object, ...] = (),
    otherwise: str = "",
    own: bool = False,
    held: tuple[int, int] | None = None,
    hot: bool = False,
    secret: bool = False,
    group: str = "",
) -> Any:
    """Declare a field of a configuration class.

    - `default`: a value, or a function that is called for each configuration.
    - `about`: the meaning of the setting, for the reference page.
    - `key`: Apache's key. By default the key is the field's name in camelCase.
    - `low`, `high`: bounds of a number, inclusive.
    - `only`: the values that this release can serve, if ignoring another value would do harm.
      `otherwise` gives the reason.
    - `held`: inclusive range to which a number is moved, as Apache's servers do. The moved
      value is shown.
    - `hot`: the setting can be changed while the server runs.
    - `secret`: the value is never shown.
    - `group`: name of the group that begins with this field.
    """
    known = Setting(key, about, unit, low, high, only, otherwise, own, held, hot, secret, group)
    if callable(default):
        return dataclasses.field(default_factory=default, metadata={"setting": known})
    return dataclasses.field(default=default, repr=not secret, metadata={"setting": known})


def unserved(default: Any, about: str, otherwise: str, *, key: str = "", group: str = "") -> Any:
    """Declare a field with only one allowed value, the default.

    `otherwise` gives the reason.
    """
    return setting(default, about, key=key, only=(default,), otherwise=otherwise, group=group)


def settings_of(config: type[SettingsClass]) -> Iterator[tuple[str, Setting]]:
    """Yield the name and the setting of every field of a configuration class, in order."""
    group = ""
    for field in dataclasses.fields(config):
        known: Setting = field.metadata["setting"]
        first, *words = field.name.split("_")
        key = known.key or first + "".join(word.capitalize() for word in words)
        group = known.group or group
        yield field.name, dataclasses.replace(known, key=key, group=group)


def build(
    config: type[Config], texts: Mapping[str, str], overrides: Mapping[str, object]
) -> Config:
    """Return a configuration made from the texts of a file.

    - `texts`: a text for each of Apache's keys. Unknown keys are ignored.
    - `overrides`: values by field name, which take precedence. None means no override.

    Raise ConfigError, with a message of one sentence, if a value is invalid.
    """
    types = get_type_hints(config)
    values: dict[str, object] = {}
    for name, known in settings_of(config):
        if overrides.get(name) is not None:
            values[name] = _checked(known, overrides[name])
        elif known.key in texts:
            values[name] = _checked(known, _parsed(known, types[name], texts[known.key].strip()))
    strangers = overrides.keys() - types.keys()
    assert not strangers, f"no such setting: {sorted(strangers)}"
    return config(**values)


def change(
    config: Config, texts: Mapping[str, str], check: Callable[[Config], None] | None = None
) -> None:
    """Change settings of a configuration in use. Either all of them change, or none.

    `check` is first called with the changed configuration, and raises an exception to refuse it.
    Raise ConfigError, with a message of one sentence, if a value is invalid.
    """
    types = get_type_hints(type(config))
    values = {
        name: _checked(known, _parsed(known, types[name], texts[known.key].strip()))
        for name, known in settings_of(type(config))
        if known.key in texts
    }
    if check is not None:
        check(dataclasses.replace(config, **values))
    for name, value in values.items():
        object.__setattr__(config, name, value)  # frozen for other code


def below_home(*parts: str, instead: str) -> Path:
    """Return a path in the user's home directory.

    Raise ConfigError if there is no home directory, as in a container that runs with any uid. The
    error advises to set `instead`.
    """
    try:
        return Path.home().joinpath(*parts)
    except RuntimeError:
        raise ConfigError(
            "this user has no home directory (no HOME, no entry in /etc/passwd): "
            f"set HOME or {instead}"
        ) from None


def hot_keys(config: type[SettingsClass]) -> frozenset[str]:
    """Return the keys that can be changed while a server runs."""
    return frozenset(known.key for _, known in settings_of(config) if known.hot)


def effective(config: SettingsClass) -> dict[str, str]:
    """Return all keys of a configuration with their values as text, with secrets hidden.

    The texts have the form of a configuration file and of `-p`.
    """
    texts = {known: render(getattr(config, name)) for name, known in settings_of(type(config))}
    return {known.key: HIDDEN if known.secret and text else text for known, text in texts.items()}


def render(value: object) -> str:
    """Return a value as Java writes it in a properties file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _parsed(known: Setting, kind: object, text: str) -> object:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{known.key}={text}: expected true or false")
        return text.lower() == "true"
    if kind is int:
        digits = text.removeprefix("-").removeprefix("+")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            raise ConfigError(
                f"{known.key}={_short(text)}: expected a whole number{_in_unit(known)}"
            )
        return int(text)
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
        if text not in list(kind):
            raise ConfigError(f"{known.key}={_short(text)}: expected one of {', '.join(kind)}")
        return kind(text)
    return text


def _checked(known: Setting, value: object) -> object:
    if known.only and value not in known.only:
        allowed = " or ".join(render(one) or "no value" for one in known.only)
        raise ConfigError(
            f"{known.key}={render(value)}: only {allowed} is served, {known.otherwise}"
        )
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, int) and is_number and not known.low <= value <= known.high:
        raise ConfigError(
            f"{known.key}={value}: expected a whole number{_in_unit(known)} from "
            f"{known.low} to {known.high}"
        )
    if known.held is not None and isinstance(value, int):
        return min(max(value, known.held[0]), known.held[1])
    return value


def _in_unit(known: Setting) -> str:
    return f" ({known.unit})" if known.unit else ""


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
