"""Texts that brokers report about themselves, read as numbers."""

from __future__ import annotations

import pytest

from turbopump.admin.broker_figures import BrokerFigures, Rates

APACHES = {
    "brokerVersionDesc": "V5_3_3",
    "brokerActive": "true",
    "bootTimestamp": "1700000000000",
    "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]",
    "putTps": "1.5 2.5 3.5",
    "commitLogMaxOffset": "4096",
    "commitLogDiskRatio": "0.25",
    "remainHowManyDataToFlush": "1.5 KiB",
    "earliestMessageTimeStamp": "-1",
    "msgPutTotalTodayNow": "12",
    "msgPutTotalTodayMorning": "5",
    "scheduleMessageOffset_3": "17,20",
    "scheduleMessageOffset_12": "4,4",
    "timerCongestNum": "2",
    "timerReadBehind": "7",
}


def test_figures_of_apaches_broker() -> None:
    figures = BrokerFigures.read(APACHES)
    assert (figures.version, figures.is_active) == ("5.3.3", True)
    uptime_ms = ((26 * 60 + 3) * 60 + 4) * 1000
    assert figures.time_ms == 1_700_000_000_000 + uptime_ms + 500
    assert figures.put_rate == Rates(1.5, 2.5, 3.5)
    assert (figures.log_end, figures.log_disk_used, figures.unflushed_bytes) == (4096, 0.25, 1536)
    assert figures.earliest_message_ms is None
    assert (figures.messages_put, figures.messages_put_today) == (12, 7)
    assert figures.delayed == {3: 3}
    assert (figures.timers.waiting, figures.timers.behind_s) == (2, 7)
    assert figures.texts == APACHES


@pytest.mark.parametrize("text", ["", "?", "1.2.3", "NaN NaN"])
def test_a_text_that_is_not_readable_counts_as_absent(text: str) -> None:
    figures = BrokerFigures.read(dict.fromkeys(APACHES, text))
    assert (figures.started_ms, figures.put_rate, figures.log_end) == (None, None, None)
    assert (figures.unflushed_bytes, figures.delayed) == (0, {})
