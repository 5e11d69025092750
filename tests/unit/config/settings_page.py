"""Generator of `docs/reference/configuration.md`, from the tables of keys:
`python -m tests.unit.config.settings_page > docs/reference/configuration.md`."""

from collections.abc import Iterator

from turbopump.config.broker_config import BROKER_KEYS, BrokerConfig
from turbopump.config.controller_config import CONTROLLER_KEYS, ControllerConfig
from turbopump.config.keys import Key, KeyTable
from turbopump.config.namesrv_config import NAMESRV_KEYS, NamesrvConfig
from turbopump.config.setting import Setting, SettingsClass, render, settings_of

_PREFACE = """# Configuration

Written by `python -m tests.unit.config.settings_page > docs/reference/configuration.md`; a test
checks that it is up to date.

`turbopump broker -c broker.conf`, `turbopump namesrv -c namesrv.conf` and `turbopump controller -c
controller.conf` read files with Apache's keys, in the grammar of Java properties. Files are UTF-8;
any other file is read as ISO-8859-1, as Java does. `-p` prints the effective configuration. Each
key that Apache's 5.3.3 or 4.9.8 reads from these files is in one of three classes:

* **honoured**: the key does what Apache's documentation says. Some honoured keys allow only one
  value, where ignoring another would do harm. Any other value stops the start with an error.
* **accepted without effect**: one warning at the start names those keys whose value is not Apache's
  default. A file that Apache's broker has printed (`-p`, `mqadmin getBrokerConfig`) starts this
  broker. The file contains `bindAddress=0.0.0.0`, which other machines reach, so the broker also
  needs `--insecure`, or `authenticationEnabled=true` in the file.
* **unknown**: every other key. The start logs a warning with the nearest known key, and continues.

An invalid value (a word for a number) stops the start with an error; Apache ignores it silently. An
empty cell is an empty default, `-` means that this version has no such key.
"""


def page() -> str:
    """Return the text of the page."""
    lines = [_PREFACE]
    lines += _section("`broker.conf`", BROKER_KEYS, BrokerConfig)
    lines += _section("`namesrv.conf`", NAMESRV_KEYS, NamesrvConfig)
    lines += _section("`controller.conf`", CONTROLLER_KEYS, ControllerConfig)
    return "\n".join(lines)


def _section(title: str, table: KeyTable, config: type[SettingsClass]) -> Iterator[str]:
    honoured = [key for key in table.values() if not key.reason]
    accepted = [key for key in table.values() if key.reason]
    yield (
        f"## {title}: {len(table)} keys, {len(honoured)} honoured, {len(accepted)} accepted "
        "without effect\n"
    )
    yield "| key | class | type | default here | 5.3.3 | 4.9.8 | meaning, or why it has no effect |"
    yield "|---|---|---|---|---|---|---|"
    defaults = config()
    for name, known in settings_of(config):
        yield _honoured_row(table[known.key], known, _shown_default(name, getattr(defaults, name)))
    for key in accepted:
        yield _row(key, "accepted", "", key.reason)
    yield ""


def _honoured_row(key: Key, known: Setting, default: str) -> str:
    only = " or ".join(f"`{render(value)}`" if value != "" else "empty" for value in known.only)
    notes = [
        known.about,
        known.unit and f"in {known.unit}",
        known.hot and "can be changed while the server runs",
        only and f"only {only}: {known.otherwise}",
    ]
    if key.own:
        notes.append("a key of Turbopump's own")
    return _row(key, "**honoured**", default, "; ".join(note for note in notes if note))


def _shown_default(name: str, value: object) -> str:
    # Defaults that depend on the machine are described, not shown.
    machine = {
        "broker_name": "host name",
        "in_sync_replicas": "SYNC_MASTER: 2",
        "store_path_root_dir": "~/store",
        "kv_config_path": "~/namesrv/kvConfig.json",
        "controller_store_path": "~/controller",
    }
    return machine.get(name, render(value))


def _row(key: Key, key_class: str, default: str, note: str) -> str:
    old = ["-" if text is None else text for text in (key.default_5, key.default_4)]
    return (
        "| " + " | ".join([f"`{key.name}`", key_class, key.java_type, default, *old, note]) + " |"
    )


if __name__ == "__main__":
    print(page(), end="")
