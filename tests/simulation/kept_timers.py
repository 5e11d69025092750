"""Timer messages of one broker: its files, what came when."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.simulation.one_broker import HOST, OneBroker
from tests.simulation.world.mount import SimulatedMount

from turbopump.message.codec import decode_entries
from turbopump.message.properties import encode_properties


async def arrivals(world: OneBroker) -> list[tuple[int, int]]:
    """(number, store time in ms) of every message that consumers see."""
    found: list[tuple[int, int]] = []
    offset, store = 0, world.broker.store
    while True:
        result = store.get("T", 0, offset, 32)
        found += [
            (int(message.body), message.store_timestamp) for message in decode_entries(result.data)
        ]
        if result.next_offset <= offset:
            return found
        offset = result.next_offset


SMALL: dict[str, Any] = {
    "mapped_file_size_timer_log": 52 * 100 + 16,
    "flush_disk_type": "SYNC_FLUSH",
    "scrub_bytes_per_second": 0,
}


def now_ms(world: OneBroker) -> int:
    return world.simulation.clock(HOST).now_ms()


async def send(world: OneBroker, body: bytes, ahead_s: float, **more: str) -> str | None:
    """Send a message for so many seconds from now; its recall handle."""
    deliver = now_ms(world) + round(ahead_s * 1000)
    text = encode_properties({"UNIQ_KEY": body.hex(), "TIMER_DELIVER_MS": str(deliver), **more})
    return (await world.client.send(body, properties=text)).recall_handle


def files(world: OneBroker, change: Callable[[SimulatedMount], None]) -> None:
    """Change files of the store while the broker is down."""
    mount = world.simulation.disk(HOST).mount()
    change(mount)
    mount.close()
    world.simulation.disk(HOST).kill()


def damage_timer_log(mount: SimulatedMount) -> None:
    segment = mount.open_segment(Path("/store/timerlog") / ("0" * 20))
    segment.buffer[52 * 10 : 52 * 20] = b"\x33" * 520
    segment.close()
