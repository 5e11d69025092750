"""Settings of servers: how a field of a configuration class declares its key, unit and bounds, and
how text becomes a value and back. This module must not know which keys exist."""

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
    """Facts about a key beside its field's type and default."""

    key: str
    about: str
    unit: str = ""
    low: int = 0
    high: int = INT_MAX
    only: tuple[object, ...] = ()
    otherwise: str = ""
    own: bool = False
    """A key of Turbopump's, not one of Apache's."""
    held: tuple[int, int] | None = None
    hot: bool = False
    """True if the setting can change while the server runs; its readers then read it at each
    use."""
    secret: bool = False
    """Its value is shown nowhere."""


class SettingsClass(Protocol):
    """A frozen dataclass whose fields were declared with `setting`."""

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
) -> Any:
    """A field of a configuration class. `key` is the field's name in camelCase unless it is given.
    A function as the default is called for each configuration.

    `low` and `high` bound numbers, both included. `only` lists the values that this release can
    serve, where ignoring another value would do harm; `otherwise` then says why. A number outside
    of `held`, both included, counts as the nearest within, as it does for Apache's servers, and is
    shown so. `hot`: it can be changed while the server runs. `secret`: its value is shown nowhere.
    """
    known = Setting(key, about, unit, low, high, only, otherwise, own, held, hot, secret)
    if callable(default):
        return dataclasses.field(default_factory=default, metadata={"setting": known})
    return dataclasses.field(default=default, repr=not secret, metadata={"setting": known})


def unserved(default: Any, about: str, otherwise: str, *, key: str = "") -> Any:
    """A field that may have its default only, as `otherwise` says why."""
    return setting(default, about, key=key, only=(default,), otherwise=otherwise)


def settings_of(config: type[SettingsClass]) -> Iterator[tuple[str, Setting]]:
    """Field name and setting of every field, in order."""
    for field in dataclasses.fields(config):
        known: Setting = field.metadata["setting"]
        first, *words = field.name.split("_")
        key = known.key or first + "".join(word.capitalize() for word in words)
        yield field.name, dataclasses.replace(known, key=key)


def build(
    config: type[Config], texts: Mapping[str, str], overrides: Mapping[str, object]
) -> Config:
    """A configuration from `texts` (Apache key to text) with `overrides` (field name to value) on
    top.

    Keys that are not the configuration's are ignored here. Raises `ConfigError` in one sentence.
    """
    types = get_type_hints(config)
    values: dict[str, object] = {}
    for name, known in settings_of(config):
        if name in overrides:
            values[name] = _checked(known, overrides[name])
        elif known.key in texts:
            values[name] = _checked(known, _parsed(known, types[name], texts[known.key].strip()))
    strangers = overrides.keys() - types.keys()
    assert not strangers, f"no such setting: {sorted(strangers)}"
    return config(**values)


def change(
    config: Config, texts: Mapping[str, str], check: Callable[[Config], None] | None = None
) -> None:
    """Give fields of a configuration in use other values, all of them or none. `check` sees the
    result first. Raises `ConfigError` in one sentence."""
    types = get_type_hints(type(config))
    values = {
        name: _checked(known, _parsed(known, types[name], texts[known.key].strip()))
        for name, known in settings_of(type(config))
        if known.key in texts
    }
    if check is not None:
        check(dataclasses.replace(config, **values))
    for name, value in values.items():
        object.__setattr__(config, name, value)  # frozen for everybody else


def below_home(*parts: str, instead: str) -> Path:
    """A path in the home directory. Raises ConfigError where there is none, as in a container that
    runs as any uid: it says to give `instead`."""
    try:
        return Path.home().joinpath(*parts)
    except RuntimeError:
        raise ConfigError(
            "this user has no home directory (no HOME, no entry in /etc/passwd): "
            f"set HOME or {instead}"
        ) from None


def hot_keys(config: type[SettingsClass]) -> frozenset[str]:
    """The keys that can be changed while a server runs."""
    return frozenset(known.key for _, known in settings_of(config) if known.hot)


def effective(config: SettingsClass) -> dict[str, str]:
    """Return every key with the text of its value, in the form of a file and of `-p`, without
    secrets."""
    texts = {known: render(getattr(config, name)) for name, known in settings_of(type(config))}
    return {known.key: HIDDEN if known.secret and text else text for known, text in texts.items()}


def render(value: object) -> str:
    """A value as Java writes it in a properties file."""
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
