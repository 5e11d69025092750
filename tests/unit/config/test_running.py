"""Settings that are changed while a server runs, and the file that keeps them."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.loops import in_loop

from turbopump.config.broker_config import BROKER_KEYS, BrokerConfig
from turbopump.config.namesrv_config import NAMESRV_KEYS, NamesrvConfig
from turbopump.config.running import CHANGE_SIZE_MAX, RunningConfiguration
from turbopump.errors import ConfigError


class TwoThreads:
    """A disk with one file, on which an operation that waits is done while another one reads."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._waiting: list[tuple[Callable[[], None], Callable[[OSError | None], None]]] = []

    def read_file(self, path: Path) -> bytes | None:
        text = self.text
        self._go_on()
        return text

    def replace_file(self, path: Path, data: bytes) -> None:
        self.text = data

    def start(self, operation: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        self._waiting.append((operation, done))
        asyncio.get_running_loop().call_later(0.001, self._go_on)

    def _go_on(self) -> None:
        if self._waiting:
            operation, done = self._waiting.pop(0)
            operation()
            done(None)


@in_loop
async def test_changes_that_come_together_are_all_kept() -> None:
    disk = TwoThreads(b"# ours\n")
    running = RunningConfiguration(NamesrvConfig(), NAMESRV_KEYS, Path("/namesrv.conf"))
    changes = [
        running.change_keys(f"{key}=false") for key in ("enableTopicList", "enableAllTopicList")
    ]
    assert await asyncio.gather(*(running.write_changes(one, disk) for one in changes)) == [
        None,
        None,
    ]
    assert set(disk.text.splitlines()) == {
        b"# ours",
        b"enableTopicList=false",
        b"enableAllTopicList=false",
    }


def test_what_is_shown_of_keys_without_effect_is_what_java_would_read_as_its_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROCKETMQ_HOME", "/opt/rocketmq")
    for table, config in ((BROKER_KEYS, BrokerConfig()), (NAMESRV_KEYS, NamesrvConfig())):
        texts = RunningConfiguration(config, table).all_texts()
        for key in table.values():
            if key.name in texts and key.java_type in ("int", "long"):
                assert texts[key.name].lstrip("-").isdigit(), key.name
        assert texts["rocketmqHome"] == "/opt/rocketmq"


def test_a_change_that_would_take_long_to_read_is_refused() -> None:
    running = RunningConfiguration(NamesrvConfig(), NAMESRV_KEYS)
    with pytest.raises(ConfigError, match="of 32769 characters is not read: at most 32768"):
        running.change_keys("#" * (CHANGE_SIZE_MAX + 1))
    assert running.change_keys("#" * CHANGE_SIZE_MAX) == {}
