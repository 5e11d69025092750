"""Messages that were accepted while entries had no CRC, with properties that leave no room for one:
they are delivered all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.loops import in_loop, on_a_client_s_host
from tests.simulation.one_broker import HOST, OneBroker, one_broker, with_one_broker
from tests.simulation.world.simulation import Simulation
from tests.unit.store.looked_up import message_in_queue

from turbopump.message.delivery_time import SCHEDULE_TOPIC
from turbopump.message.ids import offset_msg_id
from turbopump.message.properties import PROPERTIES_SIZE_MAX, encode_properties
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import EndTransaction, TransactionOutcome
from turbopump.store.timers.pending_timers import TIMER_TOPIC

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
BEFORE: dict[str, Any] = {
    "enabled_append_prop_crc": False,
    "message_delay_level": "20s",
    "flush_disk_type": "SYNC_FLUSH",
    "scrub_bytes_per_second": 0,
}


async def send_full(world: OneBroker, waits_in: str, body: bytes, **properties: str) -> None:
    """Send a message that waits in the topic ``waits_in`` with as many bytes of properties as an
    entry can have."""
    store = world.broker.store
    fields = {"UNIQ_KEY": body.hex(), **properties, "filler": "x"}
    await world.client.send(b"measured", properties=encode_properties(fields))
    stored = message_in_queue(store.lookup, waits_in, 0, store.max_offset(waits_in, 0) - 1)
    assert stored is not None
    fields["filler"] = "x" * (1 + PROPERTIES_SIZE_MAX - len(stored.properties_text))
    await world.client.send(body, properties=encode_properties(fields))
    stored = message_in_queue(store.lookup, waits_in, 0, store.max_offset(waits_in, 0) - 1)
    assert stored is not None
    assert (stored.body, len(stored.properties_text)) == (body, PROPERTIES_SIZE_MAX)


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power cut"])
@in_loop(on_a_client_s_host)
async def test_what_waits_comes_after_the_crc_is_switched_on_and_stays_readable(
    simulation: Simulation, /, power_cut: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_broker(simulation, timer_roll_window_slot=30, **BEFORE) as world:
        await send_full(world, SCHEDULE_TOPIC, b"level", DELAY="1")
        await send_full(world, TIMER_TOPIC, b"timer", TIMER_DELAY_SEC="20")
        await send_full(world, TIMER_TOPIC, b"rolling timer", TIMER_DELAY_SEC="100")
        await world.stop()
        world.config["enabled_append_prop_crc"] = True
        await world.up()
        await world.client.send(b"plain")
        await asyncio.sleep(200)
        came = sorted(body for body in await world.delivered() if body != b"measured")
        assert came == [b"level", b"plain", b"rolling timer", b"timer"]
        world.kill(power_cut=power_cut)
        await world.up()
        await world.client.send(b"later")
        assert sorted(body for body in await world.delivered() if body != b"measured") == sorted(
            [*came, b"later"]
        )
        store = world.broker.store
        assert store.recovery is not None
        assert not store.recovery.damages
        assert store.log.requires_crc(0) is False
        assert store.log.requires_crc(store.log.end - 1), "what is written now has its CRC again"
    assert not [record for record in caplog.records if "not delivered" in record.getMessage()]


@in_loop(with_one_broker, **BEFORE)
async def test_a_half_message_that_leaves_no_room_for_a_crc_is_committed_all_the_same(
    world: OneBroker, /
) -> None:
    text = (
        "REAL_TOPIC\x01T\x02REAL_QID\x010\x02PGROUP\x01sellers\x02a\x01".ljust(
            PROPERTIES_SIZE_MAX - 1, "i"
        )
        + "\x02"
    )
    # as in a directory of Apache's broker
    half = await world.broker.parts.delivering.forwarding.append(HALF, 0, b"half", text)
    await world.stop()
    world.config["enabled_append_prop_crc"] = True
    await world.up()
    answer = await world.client.ask(
        EndTransaction(
            topic="T",
            producer_group="sellers",
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.offset,
            commit_or_rollback=TransactionOutcome.COMMIT,
            from_transaction_check=False,
            msg_id=offset_msg_id(HOST, 10911, half.offset),
            transaction_id="U",
        )
    )
    assert answer.code == ResponseCode.SUCCESS
    assert await world.delivered() == [b"half"]
