"""One bit of the log changes: it is noticed, the message is never delivered, and every other
message still is.

Every bit of the entries of a 64 KiB segment goes through the check that recovery, cold reads and
scrubs share; some go through an opened store; and in `--full` 2,000 through a whole broker on real
files, stopped cleanly or killed before.
"""

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.in_memory import Image, StillClock, Stored, config, open_image, opened
from tests.crash.reading import pulled

from turbopump.client.producer import Producer
from turbopump.config.broker_config import FlushDiskType
from turbopump.message.codec import entry_fault
from turbopump.message.message import MessageQueue
from turbopump.testing.broker_in_loop import running_broker

SEGMENT = 64 * 1024
TOPIC = "orders"
QUEUES = 2
CONFIG = config(segment_size=SEGMENT, queue_file_size=20 * 500, index_slots=40, index_entries=400)


class Full:
    """A store whose first segment is full of messages and whose second has some more, as a kill
    left it."""

    def __init__(self) -> None:
        source = random.Random(2)
        store = open_image({}, CONFIG, StillClock())
        self.messages: list[Stored] = []
        number = 0
        while not self.messages or self.messages[-1].offset < SEGMENT + 3000:
            body = b"%d " % number + source.randbytes(source.randrange(20, 1500))
            self.messages.append(store.put(TOPIC, number % QUEUES, body, f"key-{number}"))
            number += 1
        store.flush()
        self.image: Image = store.image()
        self.path = min(path for path in self.image if path.parent.name == "commitlog")
        self.segment = self.image[self.path]
        self.entries = [message for message in self.messages if message.end <= SEGMENT]

    def bits(self) -> list[tuple[Stored, int]]:
        """Every bit of every entry of the first segment: the message, and the bit's number in the
        segment."""
        return [
            (message, bit)
            for message in self.entries
            for bit in range(message.offset * 8, message.end * 8)
        ]


@pytest.fixture(scope="module")
def killed() -> Full:
    return Full()


def test_every_single_bit_flip_in_a_segment_is_detected(
    killed: Full, measured: Callable[[str], None]
) -> None:
    missed: list[int] = []
    count = 0
    for message in killed.entries:
        entry = bytearray(killed.segment[message.offset : message.end])
        assert entry_fault(bytes(entry), message.offset, crc_required=True) is None
        for at in range(len(entry)):
            plain = entry[at]
            for bit in range(8):
                entry[at] = plain ^ 1 << bit
                count += 1
                if entry_fault(bytes(entry), message.offset, crc_required=True) is None:
                    missed.append((message.offset + at) * 8 + bit)
            entry[at] = plain
    measured(f"{count:,} bits flipped, {len(missed)} not detected")
    assert missed == []
    assert count > 8 * (SEGMENT - 2000)


def test_a_killed_store_with_a_flipped_bit_serves_everything_else(
    killed: Full, full: bool, rng: random.Random, measured: Callable[[str], None]
) -> None:
    flips = rng.sample(killed.bits(), 5000 if full else 150)
    failures: list[str] = []
    for message, bit in flips:
        where = (
            f"bit {bit % 8} of byte {bit // 8 - message.offset} of the entry at {message.offset}"
        )
        try:
            served = after_flip(killed, bit)
        except Exception as error:
            failures.append(f"{where}: {type(error).__name__} {error}")
            continue
        wanted = {
            (each.queue_id, each.queue_offset): each.body
            for each in killed.messages
            if each is not message
        }
        if served != wanted:
            failures.append(f"{where}: {describe(served, wanted)}")
    measured(f"{len(flips):,} flips through an opened store, {len(failures)} wrong")
    assert not failures, f"{len(failures)} of {len(flips)}; first: {failures[:3]}"


def after_flip(made: Full, bit: int) -> dict[tuple[int, int], bytes]:
    """(queue, offset) to body of all that a store gives that was opened with this bit flipped."""
    segment = bytearray(made.segment)
    segment[bit // 8] ^= 1 << bit % 8
    with opened({**made.image, made.path: bytes(segment)}, CONFIG) as found:
        return {
            (queue_id, offset): body
            for queue_id in range(QUEUES)
            for offset, body in found.bodies(TOPIC, queue_id).items()
        }


def describe(served: dict[tuple[int, int], bytes], wanted: dict[tuple[int, int], bytes]) -> str:
    wrong = [place for place, body in served.items() if wanted.get(place) != body]
    missing = [place for place in wanted if place not in served]
    return f"delivered wrongly {wrong[:3]} ({len(wrong)}), missing {missing[:3]} ({len(missing)})"


# --- through a whole broker
# -----------------------------------------------------------------------------------------------

BROKER: dict[str, Any] = {
    "mapped_file_size_commit_log": SEGMENT,
    "max_message_size": 32 * 1024,
    "mapped_file_size_consume_queue": 20 * 500,
    "flush_disk_type": FlushDiskType.SYNC_FLUSH,
    "message_index_enable": True,
    "enabled_append_prop_crc": True,
}


async def filled(directory: Path) -> dict[tuple[int, int], tuple[int, int, bytes]]:
    """A broker's directory with more than a segment of messages, stopped cleanly: (queue, offset)
    to (start, end, body)."""
    source = random.Random(3)
    messages: dict[tuple[int, int], tuple[int, int, bytes]] = {}
    async with running_broker(directory=directory, **BROKER) as broker:
        await broker.create_topic(TOPIC, QUEUES)
        async with Producer(broker.namesrv) as producer:
            number = 0
            while broker.broker.store.log.end < SEGMENT + 3000:
                queue = MessageQueue(TOPIC, "broker-test", number % QUEUES)
                body = b"%d " % number + source.randbytes(source.randrange(20, 1500))
                result = await producer.send(TOPIC, body, queue=queue, keys=f"key-{number}")
                offset = int(result.offset_msg_id[-16:], 16)
                messages[queue.queue_id, result.queue_offset] = (
                    offset,
                    broker.broker.store.log.end,
                    body,
                )
                number += 1
    return messages


async def broker_after_flips(home: Path, rng: random.Random, count: int) -> list[str]:
    """What went wrong, one line for each flip that did."""
    template = home / "template"
    messages = await filled(template)
    places = [place for place, (_, end, _) in messages.items() if end <= SEGMENT]
    segment = Path("commitlog") / f"{0:020d}"
    plain = (template / segment).read_bytes()
    failures = []
    for number in range(count):
        place = rng.choice(places)
        start, end, _ = messages[place]
        bit = rng.randrange(start * 8, end * 8)
        directory = home / "flipped"
        shutil.copytree(template, directory)
        data = bytearray(plain)
        data[bit // 8] ^= 1 << bit % 8
        (directory / segment).write_bytes(data)
        if number % 2:
            (directory / "abort").write_bytes(b"1 turbopump")
        where = (
            f"bit {bit % 8} of byte {bit // 8 - start} of the entry at {start} after a "
            f"{'kill' if number % 2 else 'clean stop'}"
        )
        try:
            async with running_broker(directory=directory, **BROKER) as broker:
                found = await pulled(broker.namesrv, TOPIC)
        except Exception as error:
            failures.append(f"{where}: {type(error).__name__} {error}")
        else:
            wanted = {each: body for each, (_, _, body) in messages.items() if each != place}
            if found != wanted:
                failures.append(f"{where}: {describe(found, wanted)}")
        shutil.rmtree(directory)
    return failures


def test_a_broker_with_a_flipped_bit_serves_everything_else(
    fast_directory: Path, rng: random.Random, full: bool, measured: Callable[[str], None]
) -> None:
    count = 2000 if full else 20
    failures = asyncio.run(broker_after_flips(fast_directory, rng, count))
    measured(f"{count:,} flips through a broker, {len(failures)} wrong")
    assert not failures, f"{len(failures)} of {count}; first: {failures[:3]}"
