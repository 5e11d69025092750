"""Every key that Apache's servers read from their files (5.3.3 and 4.9.8), each in one of three
classes: honoured, accepted without effect, unknown.

Its one rule: nothing is guessed; a key that is in no table is unknown, and the nearest known one is
offered. It must not know values. Source: the setters of Apache's configuration classes at both
tags, which is how `MixAll.properties2Object` finds keys.
"""

import difflib
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from turbopump.config.apache_broker_keys import BROKER
from turbopump.config.apache_namesrv_keys import NAMESRV
from turbopump.config.apache_network_keys import CLIENT, SERVER
from turbopump.config.apache_store_keys import STORE


class KeyClass(enum.Enum):
    """What a key in a file does here."""

    HONOURED = "honoured"
    ACCEPTED = "accepted without effect"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Key:
    """One of Apache's keys. A default of None means that this version has no such key; `reason` is
    empty when honoured."""

    name: str
    java_type: str
    default_5: str | None
    default_4: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """What is to be said about a key: the reason for having no effect, or the nearest known key."""

    key_class: KeyClass
    reason: str = ""
    nearest: str = ""


KeyTable = Mapping[str, Key]


def classify(name: str, table: KeyTable) -> Found:
    """The class of a key in one of the two tables; `Found.nearest` is empty when no known key is
    near."""
    if key := table.get(name):
        return (
            Found(KeyClass.ACCEPTED, reason=key.reason) if key.reason else Found(KeyClass.HONOURED)
        )
    by_lower = {known.lower(): known for known in table}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return Found(KeyClass.UNKNOWN, nearest=by_lower[near[0]] if near else "")


def _read_table(
    *parts: Mapping[str, str], only_5: tuple[str, ...] = (), own: tuple[Key, ...] = ()
) -> KeyTable:
    table: dict[str, Key] = {}
    for part in parts:
        for reason, lines in part.items():
            for line in lines.strip().splitlines():
                key = _read_line(line, reason)
                if key.name in only_5:
                    key = Key(key.name, key.java_type, key.default_5, None, key.reason)
                assert key.name not in table, f"key={key.name} stands in two tables"
                table[key.name] = key
    table.update((key.name, key) for key in own)
    return table


def _read_line(line: str, reason: str) -> Key:
    name, java_type, default_5, default_4 = (column for column in line.split("  ") if column)
    new = _default(default_5.strip())
    old = new if default_4.strip() == "=" else _default(default_4.strip())
    return Key(name.strip(), java_type.strip(), new, old, reason)


def _default(text: str) -> str | None:
    return {"-": None, "''": ""}.get(text, text)


def _names(part: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(line.split()[0] for lines in part.values() for line in lines.strip().splitlines())


# Ours: Apache's broker cannot advertise another port than its own, judges a disk in per cent alone,
# leaves the types of messages to its proxy, and has the last four only in its documentation.
OWN_KEYS: Final = (
    Key("advertisedPort", "int", None, None, ""),
    Key("coldReadSharePercent", "int", None, None, ""),
    Key("diskFreeSpaceMin", "long", None, None, ""),
    Key("enableTopicMessageTypeCheck", "boolean", None, None, ""),
    Key("scrubBytesPerSecond", "int", None, None, ""),
    Key("storePathConsumeQueue", "String", None, None, ""),
    Key("storePathIndex", "String", None, None, ""),
    Key("storeCheckpoint", "String", None, None, ""),
    Key("abortFile", "String", None, None, ""),
)

BROKER_KEYS: Final = _read_table(BROKER, STORE, SERVER, CLIENT, own=OWN_KEYS)
# RocketMQ: the name server of 4.9 reads no NettyClientConfig.
NAMESRV_KEYS: Final = _read_table(NAMESRV, SERVER, CLIENT, only_5=_names(CLIENT))
