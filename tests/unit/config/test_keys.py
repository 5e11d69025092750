"""The three classes of keys, and the page that documents them."""

import re
from pathlib import Path

import pytest
from tests.unit.config.settings_page import page

from turbopump.config.broker_config import BROKER_KEYS, BrokerConfig
from turbopump.config.controller_config import CONTROLLER_KEYS, ControllerConfig
from turbopump.config.keys import KeyClass, KeyTable, classify
from turbopump.config.namesrv_config import NAMESRV_KEYS, NamesrvConfig
from turbopump.config.running import RunningConfiguration
from turbopump.config.setting import SettingsClass, effective, settings_of

DOC = Path(__file__).parents[3] / "docs" / "reference" / "configuration.md"

# Counted in Apache's source at both tags: public one-argument setters of the classes that the start
# reads a file into, and the two keys that BrokerStartup reads itself. A key that two classes have
# counts once. And five fields that are printed and have no setter.
APACHE_BROKER_KEYS = 451 + 5
APACHE_NAMESRV_KEYS = 58
APACHE_CONTROLLER_KEYS = 70
TLS_PROPERTIES = 15
"""Of `TlsSystemConfig`: Apache reads them from the JVM and from the file of `tls.config.file`."""


def test_every_key_of_apaches_is_in_the_tables() -> None:
    for keys, count in (
        (BROKER_KEYS, APACHE_BROKER_KEYS),
        (NAMESRV_KEYS, APACHE_NAMESRV_KEYS),
        (CONTROLLER_KEYS, APACHE_CONTROLLER_KEYS),
    ):
        theirs = [key for key in keys.values() if not key.own]
        assert len(theirs) == count + TLS_PROPERTIES


def test_no_page_line_or_text_of_a_configuration_shows_a_secret() -> None:
    secret = '{"username": "admin", "password": "12345678"}'
    for config in (BrokerConfig(init_authentication_user=secret), NamesrvConfig()):
        proxy = {"socksProxyConfig": f'{{"*": {secret}}}'}
        running = RunningConfiguration(config, BROKER_KEYS, given=proxy)
        shown = f"{config!r} {effective(config)} {running.all_texts()}"
        assert "12345678" not in shown
        assert effective(config)["innerClientAuthenticationCredentials"] == ""
        assert running.all_texts()["socksProxyConfig"] == "******"
        assert RunningConfiguration(config, BROKER_KEYS).all_texts()["socksProxyConfig"] == "{}"
    assert effective(BrokerConfig(init_authentication_user=secret))["initAuthenticationUser"] == (
        "******"
    )


@pytest.mark.parametrize(
    ("table", "config"),
    [
        (BROKER_KEYS, BrokerConfig),
        (NAMESRV_KEYS, NamesrvConfig),
        (CONTROLLER_KEYS, ControllerConfig),
    ],
)
def test_a_key_is_honoured_exactly_if_a_field_has_it(
    table: KeyTable, config: type[SettingsClass]
) -> None:
    assert {key.name for key in table.values() if not key.reason} == {
        known.key for _, known in settings_of(config)
    }


@pytest.mark.parametrize("config", [BrokerConfig, NamesrvConfig, ControllerConfig])
def test_what_is_called_honoured_is_read_by_something(config: type[SettingsClass]) -> None:
    sources = (DOC.parents[2] / "src" / "turbopump").rglob("*.py")
    read = {
        name for path in sources for name in re.findall(r"(?<=\w)\.(\w+)", path.read_text("utf-8"))
    }
    unread = [name for name, known in settings_of(config) if not known.only and name not in read]
    assert unread == []


def test_each_class_is_told_apart() -> None:
    assert classify("listenPort", BROKER_KEYS).key_class is KeyClass.HONOURED
    accepted = classify("inBrokerContainer", BROKER_KEYS)
    assert (accepted.key_class, accepted.reason) == (
        KeyClass.ACCEPTED,
        "there is no broker container",
    )
    assert classify("popPollingSize", NAMESRV_KEYS).key_class is KeyClass.UNKNOWN


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("flushDiskTyp", "flushDiskType"),
        ("brokerip1", "brokerIP1"),
        ("nameSrvAddr", "namesrvAddr"),
        ("qqq", ""),
    ],
)
def test_the_nearest_key_is_offered_for_an_unknown_one(written: str, meant: str) -> None:
    found = classify(written, BROKER_KEYS)
    assert (found.key_class, found.nearest) == (KeyClass.UNKNOWN, meant)


def test_defaults_are_given_per_version() -> None:
    timeout = BROKER_KEYS["registerBrokerTimeoutMills"]
    assert (timeout.java_type, timeout.default_5, timeout.default_4) == ("int", "24000", "6000")
    assert BROKER_KEYS["popPollingSize"].default_4 is None
    assert BROKER_KEYS["maxDelayTime"].default_5 is None
    assert BROKER_KEYS["messageStorePlugIn"].default_5 == ""


def test_the_page_is_up_to_date() -> None:
    assert DOC.read_text("utf-8") == page(), (
        "docs/reference/configuration.md is stale: python -m tests.unit.config.settings_page > "
        "docs/reference/configuration.md"
    )


def test_the_page_has_one_row_per_key_and_counts_them() -> None:
    rows = re.findall(
        r"^\| `([\w.]+)` \| (\*\*honoured\*\*|accepted) \|", page(), flags=re.MULTILINE
    )
    tables = (BROKER_KEYS, NAMESRV_KEYS, CONTROLLER_KEYS)
    assert all(any(name in table for table in tables) for name, _ in rows)
    assert len(rows) == sum(map(len, tables))
    honoured = sum(1 for _, kind in rows if kind == "**honoured**")
    counts = re.findall(r"(\d+) keys, (\d+) honoured, (\d+) accepted without effect", page())
    assert len(rows) == sum(int(count[0]) for count in counts)
    assert honoured == sum(int(count[1]) for count in counts)
