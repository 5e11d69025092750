"""Lines of a broker's log that an operator looks for: a registration, what was made."""

import logging

import pytest
from tests.loops import in_loop

from turbopump import ConsumeFrom, Producer, PushConsumer
from turbopump.testing.broker_in_loop import running_broker


@in_loop
async def test_a_registration_a_topic_and_a_group_have_a_line_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "turbopump.broker"):
        async with running_broker() as running:
            async with Producer(running.namesrv) as producer:
                await producer.send("orders", b"a book")
                await producer.send("orders", b"a pen")
            async with PushConsumer(
                running.namesrv, group="billing", topic="orders", consume_from=ConsumeFrom.FIRST
            ) as consumer:
                await consumer.take(1)
    assert caplog.messages.count(f"registered namesrv={running.namesrv}") == 1
    made = [line for line in caplog.messages if " made " in line]
    assert made.count("topic made topic=orders read_queues=4 write_queues=4") == 1
    assert made.count("group made group=billing") == 1
