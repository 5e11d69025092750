"""What holds for every server that the command line runs in the foreground."""

import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from turbopump.cli.log_lines import LineFormatter, line_of
from turbopump.cli.service_manager import ServiceManager
from turbopump.cli.serving import log_effective, serve, short_collections
from turbopump.config.broker_config import BrokerConfig
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.config.setting import HIDDEN, settings_of


def test_python_s_collector_passes_over_what_a_start_has_made() -> None:
    frozen: list[int] = []

    @asynccontextmanager
    async def servers() -> AsyncIterator[None]:
        tables = [{"topic": [number]} for number in range(1000)]
        os.kill(os.getpid(), signal.SIGTERM)
        yield
        frozen.append(gc.get_freeze_count())
        assert tables

    serve(servers(), ServiceManager({}))
    assert frozen[0] >= 2000
    assert gc.get_freeze_count() < frozen[0]


def watch(found: list[int], phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        found.append(info["collected"])


@pytest.fixture
def full_collections() -> Iterator[list[int]]:
    """The dead objects that each full collection has found."""
    found: list[int] = []

    watching = partial(watch, found)
    gc.callbacks.append(watching)
    yield found
    gc.callbacks.remove(watching)


def table(entries: int) -> list[list[int]]:
    return [[number] for number in range(entries)]


def die_in_cycles(count: int) -> None:
    for _ in range(count):
        cycle: list[object] = []
        cycle.append(cycle)


def test_what_is_left_after_a_long_look_is_not_looked_at_again() -> None:
    with short_collections(long_look_s=0.0):
        assert gc.get_freeze_count() == 0
        kept = table(1000)
        gc.collect()
        assert gc.get_freeze_count() > len(kept)
    assert gc.get_freeze_count() == 0


def test_after_a_short_look_all_are_looked_at_again() -> None:
    """Nothing that a server keeps for a while is lost to the collector for that."""
    with short_collections(long_look_s=60.0):
        kept = table(1000)
        gc.collect()
        assert gc.get_freeze_count() == 0
        assert kept


def test_a_growing_table_is_looked_at_once(full_collections: list[int]) -> None:
    """Full collections come by themselves, and none of them again for what has not changed."""
    with short_collections(long_look_s=0.0):
        kept = table(200_000)
        assert full_collections
        assert gc.get_freeze_count() > len(kept) / 2


def test_objects_that_died_when_they_were_passed_over_are_found_once_others_die_in_cycles() -> None:
    with short_collections(long_look_s=0.0, dead_max=1000):
        passed_over: list[object] = table(1000)  # type: ignore[assignment]
        passed_over.append(passed_over)
        gc.collect()
        del passed_over
        assert gc.collect() < 1000
        die_in_cycles(2000)
        gc.collect(0)
        assert gc.get_freeze_count() == 0
        assert gc.collect() >= 1000
        assert gc.get_freeze_count() > 0


@pytest.mark.parametrize("config", [BrokerConfig, NamesrvConfig])
def test_the_configuration_is_logged_a_group_on_a_line_without_secrets(
    config: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "turbopump.cli.serving")
    log_effective(config(tls_server_key_password="hush", listen_port=7))
    lines = [line_of(record) for record in caplog.records]
    assert {line.event for line in lines} == {"configuration"}
    groups = [line.values.pop("group") for line in lines]
    assert len(groups) == len(set(groups)) >= 5
    logged = {key: value for line in lines for key, value in line.values.items()}
    assert list(logged) == [known.key for _, known in settings_of(config)]
    assert logged["tls.server.keyPassword"] == HIDDEN
    assert (logged["listenPort"], logged["tls.enable"]) == (7, False)
    assert max(len(LineFormatter().format(record)) for record in caplog.records) < 1500


def state() -> tuple[tuple[int, int, int], list[Callable[..., object]], int]:
    return gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count()


def test_thresholds_and_callbacks_are_as_before_afterwards() -> None:
    before = state()
    with short_collections():
        assert state() != before
    assert state() == before
