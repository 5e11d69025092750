"""`turbopump message trace`: groups that have consumed a message, and records of clients."""

from __future__ import annotations

import json

import pytest

from turbopump import ConsumeFrom
from turbopump.blocking import Producer, PushConsumer
from turbopump.cli import main
from turbopump.testing import BrokerThread


def test_groups_and_records_of_clients_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with BrokerThread() as broker:
        broker.create_topic("orders", 1)
        with Producer(broker.namesrv, group="sellers") as producer:
            silent = producer.send("orders", b"x").msg_id
        code = main(["message", "trace", "orders", silent, "-n", broker.namesrv])
        out = capsys.readouterr().out
        assert code == 0
        assert "no group reads the topic orders" in out
        assert "no client has recorded anything: they do with trace=True" in out

        with Producer(broker.namesrv, group="sellers", trace=True) as producer:
            traced = producer.send("orders", b"y").msg_id
        with PushConsumer(
            broker.namesrv, group="billing", topic="orders", consume_from=ConsumeFrom.FIRST
        ) as consumer:
            consumer.commit(acknowledged=True)
        code = main(["message", "trace", "-t", "orders", traced, "-n", broker.namesrv])
        out = capsys.readouterr().out
        assert code == 0
        assert "GROUP    STATE\nbilling  NOT_ONLINE\n" in out
        assert "  Pub     sellers  127.0.0.1:" in out
        arguments = ["message", "trace", "orders", traced, "--output", "json"]
        assert main([*arguments, "-n", broker.namesrv]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["groups"] == [{"group": "billing", "state": "NOT_ONLINE", "fault": None}]
        (action,) = shown["actions"]
        assert (action["kind"], action["success"], action["outcome"]) == ("Pub", True, None)

        assert main(["message", "trace", "orders", "nope", "-n", broker.namesrv]) == 3
