"""Settings that change what the store writes: on by default, and honoured when set."""

from pathlib import Path

import pytest
from tests.unit.broker.talking import Talk, converse

from turbopump.config.broker_config import BrokerConfig
from turbopump.message.batch import encode_batch
from turbopump.message.codec import entry_fault
from turbopump.message.message import Message
from turbopump.protocol.requests.send import SendMessageV2

ALWAYS = (0, 1 << 60)


def entries(talk: Talk) -> list[bytes]:
    store = talk.broker.store
    found = [store.log.read(mark.offset, mark.size) for mark in store.log.walk(0)]
    return [entry for entry in found if entry is not None]


async def send_one_and_a_batch(talk: Talk) -> None:
    await talk.client.create()
    await talk.client.send(b"alone", properties="KEYS\x01red green\x02UNIQ_KEY\x01ID1\x02")
    batch = encode_batch([Message("T", b"a", keys=["red"]), Message("T", b"b", keys=["blue"])])
    answer = await talk.client.ask(SendMessageV2(topic="T", queue_id=0, batch=True), batch)
    assert answer.code == 0


def test_both_are_on_by_default() -> None:
    config = BrokerConfig()
    assert config.enabled_append_prop_crc
    assert config.message_index_enable


@pytest.mark.parametrize("on", [False, True])
def test_entries_carry_a_crc_over_all_of_them_if_told_to(tmp_path: Path, on: bool) -> None:
    async def scene(talk: Talk) -> None:
        await send_one_and_a_batch(talk)
        written = entries(talk)
        assert len(written) == 3
        assert [b"__CRC32#" in entry for entry in written] == [on] * 3
        assert [entry_fault(entry, crc_required=on) for entry in written] == [None] * 3
        assert await talk.client.all_bodies() == [b"alone", b"a", b"b"]

    async def after(talk: Talk) -> None:
        assert await talk.client.all_bodies() == [b"alone", b"a", b"b"]

    converse(tmp_path, scene, enabled_append_prop_crc=on)
    converse(tmp_path, after, enabled_append_prop_crc=on)


@pytest.mark.parametrize("on", [False, True])
def test_messages_are_indexed_if_told_to(tmp_path: Path, on: bool) -> None:
    async def scene(talk: Talk) -> None:
        await send_one_and_a_batch(talk)
        found = {
            key: len(talk.broker.store.lookup.find_by_key("T", key, *ALWAYS)) for key in ("ID1", "red", "green", "blue", "x")
        }
        assert found == ({"ID1": 1, "red": 2, "green": 1, "blue": 1, "x": 0} if on else dict.fromkeys(found, 0))

    converse(tmp_path, scene, message_index_enable=on, max_hash_slot_num=100, max_index_num=1000)
    assert len(list(tmp_path.glob("**/index/*"))) == on
