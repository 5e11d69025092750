"""A JSON configuration file that ends too early, at every byte: the broker starts, and an offset is
at most two saves old.

Every byte goes through the tables themselves; some (in `--full` every tenth) through the start of a
whole broker. And saving them never holds up the loop, however slow the disk.
"""

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stand_ins import does_nothing

from turbopump.broker.groups import GroupTable
from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.topics import TopicTable
from turbopump.client.producer import Producer
from turbopump.client.pull_consumer import PullConsumer
from turbopump.clock import SystemClock
from turbopump.disk import whole_files
from turbopump.disk.json_table import JsonTable
from turbopump.disk.system_disk import SystemDisk
from turbopump.message.message import MessageQueue
from turbopump.testing.broker_in_loop import running_broker

TOPIC = "orders"
GROUP = "accounting"
FILES = ("consumerOffset", "topics", "subscriptionGroup")
SAVED = (100, 200)
"""The offsets of the last two saves."""


class Lived:
    """The configuration directory of a broker that was started twice and saved its tables several
    times."""

    def __init__(self, home: Path) -> None:
        self.directory = home / "lived"
        for offset in SAVED:
            asyncio.run(self._life(offset))

    async def _life(self, offset: int) -> None:
        queue = MessageQueue(TOPIC, "broker-test", 0)
        async with running_broker(directory=self.directory) as broker:
            if offset == SAVED[0]:
                await broker.create_topic(TOPIC, 2)
            async with (
                Producer(broker.namesrv) as producer,
                PullConsumer(broker.namesrv, group=GROUP) as consumer,
            ):
                while (await producer.send(TOPIC, b"x", queue=queue)).queue_offset < 250:
                    pass
                await consumer.commit(queue, offset)

    def config(self, name: str) -> Path:
        return self.directory / "config" / f"{name}.json"


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    return Lived(tmp_path_factory.mktemp("json"))


def load(directory: Path, name: str) -> TopicTable | GroupTable | ConsumerOffsets:
    """The table in `directory`, as a broker loads it."""
    table = JsonTable(SystemDisk(), directory / f"{name}.json", does_nothing)
    clock = SystemClock()
    loaded: TopicTable | GroupTable | ConsumerOffsets
    if name == "topics":
        loaded = TopicTable(table, clock, auto_create=True)
    elif name == "subscriptionGroup":
        loaded = GroupTable(table, clock, auto_create=True)
    else:
        loaded = ConsumerOffsets(table, clock)
    loaded.load()
    return loaded


def knows(table: TopicTable | GroupTable | ConsumerOffsets) -> str | None:
    """What is missing in a loaded table, or None."""
    if isinstance(table, ConsumerOffsets):
        offset = table.find(GROUP, TOPIC, 0)
        return None if offset is not None and offset >= SAVED[0] else f"the offset is {offset}"
    if isinstance(table, TopicTable):
        return None if table.find(TOPIC) is not None else "the entry is gone"
    return None if table.get(GROUP) is not None else "the entry is gone"


@pytest.mark.parametrize("name", FILES)
def test_a_table_cut_at_any_byte_is_read_from_its_backup(
    lived: Lived, name: str, fast_directory: Path, full: bool, measured: Callable[[str], None]
) -> None:
    shutil.copytree(lived.config(name).parent, fast_directory / "config")
    path = fast_directory / "config" / f"{name}.json"
    data = path.read_bytes()
    assert knows(load(path.parent, name)) is None
    wrong: list[str] = []
    cuts = range(0, len(data), 1 if full else 11)
    for cut in cuts:
        path.write_bytes(data[:cut])
        try:
            missing = knows(load(path.parent, name))
        except Exception as error:
            missing = f"{type(error).__name__} {error}"
        if missing is not None:
            wrong.append(f"cut at {cut} of {len(data)}: {missing}")
    measured(f"{name}.json: {len(cuts):,} cuts, {len(wrong)} wrong")
    assert not wrong, f"{len(wrong)}; first: {wrong[:3]}"


async def start_with(directory: Path) -> int | None:
    """Start a broker and ask it where the group stands."""
    async with (
        running_broker(directory=directory) as broker,
        PullConsumer(broker.namesrv, group=GROUP) as consumer,
    ):
        return await consumer.committed(MessageQueue(TOPIC, "broker-test", 0))


@pytest.mark.parametrize("name", FILES)
def test_a_broker_starts_with_a_file_cut_anywhere(
    lived: Lived, name: str, fast_directory: Path, full: bool, measured: Callable[[str], None]
) -> None:
    data = lived.config(name).read_bytes()
    cuts = range(0, len(data), 10) if full else range(0, len(data), max(len(data) // 5, 1))
    wrong: list[str] = []
    for cut in cuts:
        directory = fast_directory / f"cut-{cut}"
        shutil.copytree(lived.directory, directory)
        (directory / "config" / f"{name}.json").write_bytes(data[:cut])
        try:
            offset = asyncio.run(start_with(directory))
        except Exception as error:
            wrong.append(f"cut at {cut}: {type(error).__name__} {error}")
        else:
            if offset is None or offset < SAVED[0]:
                wrong.append(f"cut at {cut}: the offset is {offset}")
        shutil.rmtree(directory)
    measured(f"{name}.json: {len(cuts)} starts, {len(wrong)} wrong")
    assert not wrong, f"{len(wrong)}; first: {wrong[:3]}"


SAVING_S = 120.0
"""Within this time there must have been enough saves, on a busy machine too."""


async def longest_turn_while_saving(
    directory: Path, fsync_seconds: float, wanted: int
) -> tuple[float, int]:
    """The longest that the loop was held up while offsets were saved again and again, and how often
    they were, at least as often as ``wanted``."""
    saves = 0
    plain = whole_files.sync_directory

    def slow(path: Path) -> None:
        nonlocal saves
        saves += path.name == "config"
        time.sleep(fsync_seconds)
        plain(path)

    whole_files.sync_directory = slow
    try:
        async with (
            asyncio.timeout(SAVING_S),
            running_broker(directory=directory, flush_consumer_offset_interval=1) as broker,
        ):
            await broker.create_topic(TOPIC, 1)
            async with PullConsumer(broker.namesrv, group=GROUP) as consumer:
                queue, longest, number = MessageQueue(TOPIC, "broker-test", 0), 0.0, 0
                while saves < wanted:
                    before = time.monotonic()
                    await consumer.commit(queue, number)
                    number += 1
                    longest = max(longest, time.monotonic() - before)
                return longest, saves
    finally:
        whole_files.sync_directory = plain


def test_saving_tables_never_stalls_the_loop(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    """A save that holds up the loop does so each time; a machine that stands still does not."""
    fsync_seconds, longest = 0.4, list[float]()
    while not longest or (longest[-1] >= fsync_seconds / 2 and len(longest) < 5):
        directory = tmp_path / str(len(longest))
        took, saves = asyncio.run(longest_turn_while_saving(directory, fsync_seconds, 4))
        longest.append(took)
    measured(
        f"{saves} saves of {fsync_seconds * 1000:.0f} ms each, the longest answer took "
        f"{longest[-1] * 1000:.0f} ms"
    )
    assert longest[-1] < fsync_seconds / 2, longest
