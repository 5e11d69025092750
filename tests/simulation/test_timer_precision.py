"""Another ``timerPrecisionMs`` than before: what waits is neither lost, nor early, nor there twice,
and can still be called back."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.fuzzing import crossed, some
from tests.loops import in_loop, on_a_client_s_host
from tests.simulation.kept_timers import SMALL, arrivals, damage_timer_log, files, now_ms
from tests.simulation.one_broker import HOST, OneBroker, full_after, one_broker
from tests.simulation.world.mount import SimulatedMount
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.popping import Popper

from turbopump.message.properties import encode_properties
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import RecallMessage
from turbopump.store.timers.pending_timers import TIMER_TOPIC

PRECISIONS = (100, 200, 500, 1000)
CHANGES = [
    *some((old, new) for old in PRECISIONS for new in PRECISIONS if old < new),
    *some((old, new) for old in PRECISIONS for new in PRECISIONS if old > new),
]
SLACK_MS = 100


@dataclass
class Sent:
    """``due`` is number → time of delivery (ms), ``handles`` what recalls them."""

    world: OneBroker
    due: dict[int, int] = field(default_factory=dict)
    handles: dict[int, str] = field(default_factory=dict)
    recalled: set[int] = field(default_factory=set)

    async def send(self, number: int, ahead_ms: int, *, by_delay: bool) -> None:
        self.due[number] = now_ms(self.world) + ahead_ms
        asked = (
            {"TIMER_DELAY_MS": str(ahead_ms)}
            if by_delay
            else {"TIMER_DELIVER_MS": str(self.due[number])}
        )
        text = encode_properties({"UNIQ_KEY": f"U{number}", **asked})
        handle = (await self.world.client.send(b"%d" % number, properties=text)).recall_handle
        assert handle is not None
        self.handles[number] = handle

    async def recall(self, number: int) -> None:
        answer = await self.world.client.ask(
            RecallMessage(topic="T", recall_handle=self.handles[number])
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        self.recalled.add(number)

    async def check(self, *, late_ms: int, settled_at: int, twice_before: int = 0) -> None:
        """When all has come. ``twice_before``: what was due before this may have come again (a
        kill)."""
        came = await self.world.simulation.process(HOST).start(arrivals(self.world))
        count = Counter(number for number, _ in came)
        assert set(count) == set(self.due) - self.recalled, "lost, or came in spite of a recall"
        assert [
            number
            for number, times in count.items()
            if times > 1 and self.due[number] >= twice_before
        ] == []
        early = {number: self.due[number] - at for number, at in came if at < self.due[number]}
        late = {
            number: at - self.due[number]
            for number, at in came
            if at > max(self.due[number], settled_at) + late_ms + SLACK_MS
        }
        assert (early, late) == ({}, {})


@pytest.mark.parametrize(
    ("old", "new", "how", "window"),
    [(*change, *way) for change, way in crossed(CHANGES, [("stop", 172_800), ("kill", 20)])],
)
@in_loop(on_a_client_s_host)
async def test_what_waits_comes_once_and_on_time_after_a_change_of_the_precision(
    simulation: Simulation, /, old: int, new: int, how: str, window: int
) -> None:
    async with one_broker(
        simulation,
        **SMALL,
        timer_precision_ms=old,
        timer_roll_window_slot=window,
        timer_flush_interval_ms=20,
    ) as world:
        sent = Sent(world)
        for number in range(120):
            await sent.send(number, 1500 + number * 157, by_delay=number % 3 == 1)
        for number in range(60, 120, 10):
            await sent.recall(number)
        for number in range(120, 140):  # rolls several times
            await sent.send(number, 50_000 + number * 157, by_delay=number % 3 == 1)
        await sent.recall(125)
        await asyncio.sleep(8.3)
        if how == "stop":
            await world.stop()
        else:
            timers = world.broker.parts.delivering.timers
            assert timers is not None
            # what is not noted yet comes again, or rolls again, with any precision
            while timers.pending.moved:
                await asyncio.sleep(0.001)
            world.kill()
        killed_at = now_ms(world)
        world.config["timer_precision_ms"] = new
        await world.up()
        for number in [
            number for number in range(71, 140, 10) if sent.due[number] > now_ms(world) + 1000
        ]:
            await sent.recall(number)
        await asyncio.sleep(2)
        await world.stop()  # the second start is like any other
        await world.up()
        await asyncio.sleep(90)
        lag = 3 if old == 1000 else 0
        await sent.check(late_ms=max(new, old) + lag, settled_at=killed_at + 500)


@pytest.mark.parametrize(
    ("old", "new", "index"), [(*change, way) for change, way in crossed(CHANGES, [True, False])]
)
@in_loop(on_a_client_s_host)
async def test_every_message_can_be_called_back_after_a_change(
    simulation: Simulation, /, old: int, new: int, index: bool
) -> None:
    async with one_broker(
        simulation, **SMALL, timer_precision_ms=old, message_index_enable=index
    ) as world:
        sent = Sent(world)
        for number in range(60):
            await sent.send(number, 10_000 + number * 157, by_delay=number % 3 == 1)
        for number in range(0, 60, 2):
            await sent.recall(number)
        await asyncio.sleep(1.7)
        await world.stop()
        world.config["timer_precision_ms"] = new
        await world.up()
        for number in range(1, 60, 2):
            await sent.recall(number)
        await asyncio.sleep(40)
        await sent.check(late_ms=0, settled_at=0)


def change_checkpoint(mount: SimulatedMount, at: int) -> None:
    path = Path("/store/config/timercheck")
    mount.replace_file(path, (mount.read_file(path) or b"")[:at].ljust(4096, b"\0"))


def as_apaches(mount: SimulatedMount) -> None:
    """Leave the checkpoint as Apache's broker would have written it."""
    change_checkpoint(mount, 56)


def of_an_earlier_release(mount: SimulatedMount) -> None:
    """Without the precision."""
    change_checkpoint(mount, 104)


@pytest.mark.parametrize(
    ("old", "new", "whose", "window"),
    [
        (*change, *way)
        for change, way in crossed(
            [*CHANGES, *zip(PRECISIONS, PRECISIONS, strict=True)],
            [(as_apaches, 20), (of_an_earlier_release, 172_800)],
        )
    ],
)
@in_loop(on_a_client_s_host)
async def test_a_directory_of_apaches_or_of_an_earlier_release_may_have_had_another_precision(
    simulation: Simulation,
    /,
    old: int,
    new: int,
    whose: Any,
    window: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with one_broker(
        simulation, **SMALL, timer_precision_ms=old, timer_roll_window_slot=window
    ) as world:
        with monkeypatch.context() as as_there:
            as_there.setattr(
                "turbopump.broker.schedule.timer_messages.slots_of",
                lambda out, _deliver, _precision: (out, out),
                raising=False,
            )
            sent, start, forwarding = (
                Sent(world),
                now_ms(world),
                world.broker.parts.delivering.forwarding,
            )
            for number in range(120):
                due = sent.due[number] = (
                    start + 3000 + number * 157 + (40_000 if number >= 100 else 0)
                )
                out = (due - 1) // old * old
                by_delay = (
                    {"TIMER_DELAY_SEC": "77"} if number % 3 == 1 else {"TIMER_DELIVER_MS": str(due)}
                )
                stored = {
                    "UNIQ_KEY": f"U{number}",
                    **by_delay,
                    "TIMER_OUT_MS": str(out),
                    "REAL_TOPIC": "T",
                    "REAL_QID": "0",
                }
                await world.simulation.process(HOST).start(
                    forwarding.append(TIMER_TOPIC, 0, b"%d" % number, encode_properties(stored))
                )
            await asyncio.sleep(8)
            stopped_at = now_ms(world)
            await world.stop()
        files(world, whose)
        world.config["timer_precision_ms"] = new
        await world.up()
        await asyncio.sleep(0.3)
        world.kill()  # on the way, or soon after
        await world.up()
        await asyncio.sleep(80)
        await sent.check(
            late_ms=1000 + new, settled_at=stopped_at + 1000, twice_before=stopped_at + 1000
        )


@pytest.mark.parametrize(("old", "new"), [(100, 1000), (1000, 100), (200, 500)])
@in_loop(on_a_client_s_host)
async def test_a_stop_in_the_middle_of_a_slot_repeats_nothing_after_a_change(
    simulation: Simulation, /, old: int, new: int
) -> None:
    async with one_broker(simulation, **SMALL, timer_precision_ms=old) as world:
        sent = Sent(world)
        for number in range(100):
            await sent.send(number, 10_000 + number % 2 * 40, by_delay=False)
        await sent.recall(90)
        with full_after(world.broker.store, 40):
            await asyncio.sleep(15)
            await world.stop()
        world.config["timer_precision_ms"] = new
        await world.up()
        await asyncio.sleep(5)
        await sent.check(late_ms=0, settled_at=now_ms(world))


@pytest.mark.parametrize(("old", "new"), [(100, 1000), (1000, 100)])
@in_loop(on_a_client_s_host)
async def test_a_kill_while_new_slots_are_given_lets_it_begin_anew(
    simulation: Simulation, /, old: int, new: int
) -> None:
    async with one_broker(simulation, **SMALL, timer_precision_ms=old) as world:
        sent = Sent(world)
        for number in range(400):
            await sent.send(number, 60_000 + number * 7, by_delay=number % 2 == 0)
        await asyncio.sleep(2)
        for power_cut, precision in ((False, old), (True, new), (False, new), (True, new)):
            world.kill(power_cut=power_cut)
            world.config["timer_precision_ms"] = precision
            await world.up()
            timers = world.broker.parts.delivering.timers
            assert timers is not None
            if precision == new:
                while timers.pending.log.end < timers.pending.log_begin + 52 * 100:
                    await asyncio.sleep(0.0001)
        await asyncio.sleep(80)
        await sent.check(late_ms=1000, settled_at=0)
        assert len(world.broker.parts.delivering.timers.pending.log.files.files) > 0  # type: ignore[union-attr]
        assert (
            world.broker.parts.delivering.timers.pending.log.start
            == world.broker.parts.delivering.timers.pending.log_begin
        )  # type: ignore[union-attr]


@pytest.mark.parametrize(("old", "new"), [(100, 1000), (1000, 100)])
@in_loop(on_a_client_s_host)
async def test_with_a_damaged_timer_log_nothing_is_lost_or_early_either(
    simulation: Simulation, /, old: int, new: int
) -> None:
    async with one_broker(simulation, **SMALL, timer_precision_ms=old) as world:
        sent = Sent(world)
        for number in range(150):
            await sent.send(number, 3000 + number * 157, by_delay=number % 3 == 1)
        await sent.recall(100)
        await asyncio.sleep(8.3)
        await world.stop()
        stopped_at = now_ms(world)
        files(world, damage_timer_log)
        world.config["timer_precision_ms"] = new
        await world.up()
        await sent.recall(110)
        await asyncio.sleep(60)
        await sent.check(late_ms=1000, settled_at=stopped_at + 1000, twice_before=stopped_at)


@pytest.mark.parametrize(
    ("old", "new", "how"), [(*change, way) for change, way in crossed(CHANGES, ["stop", "kill"])]
)
@in_loop(on_a_client_s_host)
async def test_what_was_popped_and_not_acknowledged_is_back_after_a_change_and_the_rest_is_not(
    simulation: Simulation, /, old: int, new: int, how: str
) -> None:
    async with one_broker(
        simulation, flush_disk_type="SYNC_FLUSH", timer_precision_ms=old
    ) as world:
        clock = world.simulation.clock(HOST).now_ms
        popper = Popper(world.client, clock)
        visible: dict[bytes, int] = {}
        await world.client.send(b"first")
        for one in await popper.pop():
            await popper.ack(one)
        await asyncio.sleep(20)  # now the place of the group is on the disk
        for number in range(40):
            await world.client.send(b"%d" % number)
            (one,) = await popper.pop(invisible_ms=20_000)
            if number % 4 == 3:
                assert await popper.ack(one) == ResponseCode.SUCCESS
            else:
                visible[one.body] = one.handle.visible_at_ms
            await asyncio.sleep(0.037)
        await asyncio.sleep(1.2)
        if how == "stop":
            await world.stop()
        else:
            world.kill()
        world.config["timer_precision_ms"] = new
        await world.up()
        popper, back, end = Popper(world.client, clock), dict[bytes, int](), clock() + 45_000
        while clock() < end:
            for one in await popper.pop(invisible_ms=60_000):
                assert one.body not in back
                back[one.body] = clock()
            await asyncio.sleep(0.05)
        assert set(back) == set(visible)
        assert [
            back[body] - at for body, at in visible.items() if not -10 <= back[body] - at <= 3000
        ] == []
