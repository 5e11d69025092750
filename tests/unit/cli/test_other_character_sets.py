"""Arguments in another character set than UTF-8, and terminals with one of 8 bits: no traceback."""

from __future__ import annotations

import io
import os
import sys

import pytest

from turbopump import Producer
from turbopump.cli import main
from turbopump.testing.broker_in_loop import BrokerThread

ORDERS = "订单"
GBK = os.fsdecode(ORDERS.encode("gbk"))


@pytest.mark.parametrize(
    "command", ["topic route", "offset show", "dlq show", "consumer show", "consume", "produce"]
)
def test_an_argument_that_is_not_utf8_is_answered_with_a_sentence(
    rocketmq: BrokerThread, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([*command.split(), GBK, "-n", rocketmq.namesrv]) in (2, 3)
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    assert told.out == ""


async def _send(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        await producer.send("orders", ORDERS, keys=["42"])


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_a_terminal_shows_what_it_lacks_as_escapes(
    rocketmq: BrokerThread, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    rocketmq.create_topic("orders")
    rocketmq.run(_send(rocketmq.namesrv))
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    assert main(["message", "by-key", "orders", "42", "-n", rocketmq.namesrv]) == 0
    sys.stdout.flush()
    assert b"\\u8ba2\\u5355" in written.getvalue()
