"""Arguments in another character set than UTF-8, and terminals with one of 8 bits: no traceback."""

from __future__ import annotations

import io
import json
import os
import sys

import pytest
from tests.unit.broker.foreign_frames import GBK as GBK_BYTES
from tests.unit.broker.foreign_frames import PROPERTIES, SEND_V2, answers, json_frame, send_fields

from turbopump import ConsumeFrom, Delivery, Producer, PushConsumer
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


async def _send(namesrv: str, body: str = ORDERS) -> None:
    async with Producer(namesrv) as producer:
        await producer.send("orders", body, keys=["42"])


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


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_json_on_a_pipe_of_another_character_set_is_json(
    rocketmq: BrokerThread, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    rocketmq.create_topic("orders")
    rocketmq.run(_send(rocketmq.namesrv, "é \U0001f4d6"))
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    command = ["message", "by-key", "orders", "42", "--output", "json", "-n", rocketmq.namesrv]
    assert main(command) == 0
    sys.stdout.flush()
    assert json.loads(written.getvalue())["body"] == "é \U0001f4d6"


async def consumed(rocketmq: BrokerThread) -> Delivery:
    frame = json_frame(SEND_V2, 1, send_fields(PROPERTIES), b"body")
    assert (await answers(rocketmq.broker_address, frame))[1].code == 0
    async with PushConsumer(
        rocketmq.namesrv, group="g", topic="T", consume_from=ConsumeFrom.FIRST
    ) as consumer:
        (delivery,) = await consumer.take(1)
        delivery.done()
        return delivery


def test_consumers_of_ours_read_them(rocketmq: BrokerThread) -> None:
    rocketmq.create_topic("T")
    delivery = rocketmq.run(consumed(rocketmq))
    assert delivery.keys == [GBK_BYTES.decode(errors="replace"), "a"]
    assert delivery.tags == GBK_BYTES.decode(errors="replace")
    for command in ("consume T --count 1", "message by-key T a"):
        assert main([*command.split(), "-n", rocketmq.namesrv]) == 0
