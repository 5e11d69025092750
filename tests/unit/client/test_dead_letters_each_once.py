"""Dead letters are resent once, and nothing that is not one is taken for it: copies that fail once more, other clusters, topics gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.client.test_dead_letters import GROUP, SETTLE_S, dead, once, stored, with_broker

from turbopump.client.dead_letters import DeadLetter, DeadLetters, ResendTo, outcomes, resend, resending
from turbopump.message.message_queue import MessageQueue
from turbopump.testing import RunningBroker


def test_resent_letters_that_fail_once_more_are_nobody_else_s_resends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retry_topic = f"%RETRY%{GROUP}"

    async def failing_once_more(instance: Any, letter: DeadLetter, queue: MessageQueue) -> outcomes.Outcome:
        """What a broker does when a consumer fails: it stores a copy with all properties, as the next attempt."""
        outcome = await outcomes.send_once(instance, letter, queue)
        copy = msgspec.structs.replace(letter.request(queue), reconsume_times=1)
        address = instance.routes.known[queue.topic].master(queue.broker_name)
        await instance.remoting.call(address, copy, letter.message.stored_body)
        return outcome

    monkeypatch.setattr(resending, "send_once", failing_once_more)

    async def story(broker: RunningBroker, dead_letters: DeadLetters) -> None:
        await broker.create_topic(retry_topic)
        await dead(broker, 30)
        report = await resend(dead_letters, GROUP, tmp_path, ResendTo.RETRY, settle=SETTLE_S)
        assert (report.sent, report.complete) == (30, True)
        messages = await stored(broker, retry_topic)
        assert once([message for message in messages if message.reconsume_times == 0], 30)
        assert len(messages) == 60

    with_broker(story)
