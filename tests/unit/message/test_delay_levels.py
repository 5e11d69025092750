"""Delay levels: their text, which one a message asks for, and when it is due."""

from __future__ import annotations

import pytest

from turbopump.config.broker_config import BrokerConfig
from turbopump.config.delay_levels import DEFAULT_LEVELS, parse_delay_levels
from turbopump.errors import ConfigError
from turbopump.message.delivery_time import DelayLevels, delay_level
from turbopump.message.properties import encode_properties


def text(**properties: str) -> str:
    return encode_properties(properties)


def test_the_table_is_apaches_unless_told_otherwise() -> None:
    delays = parse_delay_levels(DEFAULT_LEVELS)
    assert len(delays) == 18
    assert (delays[0], delays[4], delays[17]) == (1000, 60_000, 7_200_000)
    assert BrokerConfig().delay_levels_ms == delays
    assert BrokerConfig(message_delay_level="1s 2m 3h 4d").delay_levels_ms == (
        1000,
        120_000,
        10_800_000,
        345_600_000,
    )


@pytest.mark.parametrize(
    "wrong", ["", "5", "s", "1s,2s", "-1s", "1.5s", "1w", "1S", "99999999s", "1s " * 1001]
)
def test_a_table_that_makes_no_sense_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="messageDelayLevel"):
        parse_delay_levels(wrong)


def test_a_message_is_due_by_its_level_and_the_highest_stands_for_all_above() -> None:
    levels = DelayLevels((1000, 5000))
    assert levels.highest == 2
    assert levels.due_ms(text(DELAY="1"), 100) == 1100
    assert levels.due_ms(text(DELAY="2"), 100) == 5100
    assert levels.due_ms(text(DELAY="7"), 100) == 5100


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", "9999999999"])
def test_what_is_no_level_is_never_due(value: str) -> None:
    assert DelayLevels().due_ms(text(DELAY=value), 100) is None


def test_a_level_that_is_no_number_is_told_apart_from_none() -> None:
    assert delay_level(text(TAGS="a")) == 0
    assert delay_level(text(DELAY="3")) == 3
    with pytest.raises(ValueError, match="DELAY"):
        delay_level(text(DELAY="soon"))
