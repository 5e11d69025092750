"""A broker's scrub: begun by itself, told of in the log, switched off by its setting. In virtual
time."""

import asyncio
import logging

import pytest
from tests.loops import in_loop, on_a_client_s_host, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import Talk, in_virtual_time, simulated_broker
from tests.unit.store.looked_up import find_by_key

from turbopump.store.repair import scrub
from turbopump.store.repair.scrub import FIRST_REST_S
from turbopump.timetable import Timetable


@in_loop(on_a_client_s_host)
async def test_the_log_is_scrubbed_again_and_again_and_damage_is_told_once(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "REST_S", 30.0)  # a day of virtual time takes a minute

    async with simulated_broker(simulation) as talk:
        with caplog.at_level(logging.INFO, "turbopump.broker"):
            sent = [await talk.client.send(b"%d" % number) for number in range(20)]
            scrubbing, log = talk.broker.parts.copying.scrubbing, talk.broker.store.log
            assert scrubbing is not None
            await asyncio.sleep(FIRST_REST_S + 5)
            assert (scrubbing.numbers.passes, scrubbing.numbers.entries_checked) == (1, 20)
            assert (
                f"passes=1 bytes={log.end} entries=20 damaged_ranges=0 damaged_bytes=0 "
                "wrong_units=0"
            ) in caplog.text
            offset = int(sent[7].msg_id[-16:], 16)
            log.files.files[0].buffer[offset + 90] ^= 1
            await asyncio.sleep(60)
            assert scrubbing.numbers.passes == 3
            assert scrubbing.numbers.damaged_ranges == 1
            told = [
                record.getMessage() for record in caplog.records if record.levelno == logging.ERROR
            ]
            assert len(told) == 1
            assert f"store: the scrub found bytes {offset} to " in told[0]


@in_loop(in_virtual_time, scrub_bytes_per_second=0)
async def test_it_can_be_switched_off(talk: Talk, simulation: Simulation, /) -> None:
    assert talk.broker.parts.copying.scrubbing is None


@in_loop(simulated)
async def test_an_action_at_its_own_pace_comes_when_it_said_and_ends_if_it_fails(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    timetable, begun, times = Timetable(), loop.time(), list[float]()

    def action() -> float:
        times.append(loop.time() - begun)
        if len(times) == 4:
            raise ValueError("no more")
        return float(len(times))

    timetable.at_its_pace(action)
    await asyncio.sleep(100)
    assert times == pytest.approx([0, 1, 3, 6])
    assert "repeating action failed and ends" in caplog.text
    timetable.at_its_pace(lambda: times.append(-1) or 1.0)
    timetable.close()
    await asyncio.sleep(100)
    assert -1 not in times


@in_loop(in_virtual_time)
async def test_a_damaged_index_file_and_a_damaged_unit_are_repaired_while_the_broker_serves(
    talk: Talk, simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "turbopump.broker"):
        for number in range(20):
            await talk.client.send(b"%d" % number, properties=f"KEYS\x01k{number}\x02")
        store = talk.broker.store
        queue = store.queue("T", 0)
        assert queue is not None
        assert store.index is not None
        queue.rewrite(7, 5, 5, 5)
        store.index.write_waiting()
        file = store.index.files[0]
        at = file.entries_piece(4, 1).at
        file.segment.buffer[at : at + 4] = b"\xff\xff\xff\xff"
        for number in range(20):
            find_by_key(store.lookup, "T", f"k{number}", 0, 1 << 60)
        scrubbing = talk.broker.parts.copying.scrubbing
        assert scrubbing is not None
        while not scrubbing.numbers.passes:  # how long a pass takes depends on the disk
            await asyncio.sleep(1)
        assert [
            len(find_by_key(store.lookup, "T", f"k{number}", 0, 1 << 60)) for number in range(20)
        ] == [1] * 20
        assert await talk.client.all_bodies() == [b"%d" % number for number in range(20)]
        told = [
            (record.levelno, record.getMessage())
            for record in caplog.records
            if "store: " in record.getMessage()
        ]
        assert [level for level, _ in told] == [logging.ERROR, logging.INFO, logging.ERROR]
        assert f"index file {file.segment.path} is damaged" in told[0][1]
        assert (
            f"index file {file.segment.path} is filled again from the log: 40 entries" in told[1][1]
        )
        assert (
            "the scrub repaired unit 7 of the consume queue of T queue 0: it points to 5, 5 bytes"
            in told[2][1]
        )
