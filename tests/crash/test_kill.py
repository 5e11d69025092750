"""kill -9 under load: what was acknowledged under SYNC_FLUSH is consumed, once, in order, by every
group."""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median

from tests.crash import fill_store
from tests.crash.broker_process import NAME, SETTINGS, BrokerProcess
from tests.crash.load import TOPIC, Load

import turbopump
from turbopump.client.producer import Producer
from turbopump.message.message import MessageQueue

SERVING_SECONDS_MAX = 60.0
"""It is one second where nothing else runs; a machine that is loaded or frozen may take its
time."""
QUEUES = 8


async def killed(
    home: Path, rng: random.Random, kills: int, per_life: int
) -> tuple[Load, list[float]]:
    """Load on a broker that is killed so many times, each after about `per_life` acknowledgements;
    some while they start."""
    serving: list[float] = []
    async with BrokerProcess(home / "home", home / "store", SETTINGS) as broker:
        await broker.start()
        await broker.create_topic(TOPIC, QUEUES)
        load = Load(broker.namesrv, rng, queues=QUEUES)
        await load.start()
        load.resume()
        try:
            for number in range(kills):
                await load.until(
                    load.acknowledged + rng.randrange(per_life // 2, per_life + per_life // 2)
                )
                load.fix()
                await broker.kill()
                if number % 5 == 4:
                    await broker.spawn()
                    # somewhere in its start: nobody tells us where
                    await asyncio.sleep(rng.uniform(0.1, 0.8))
                    await broker.kill()
                begun = time.monotonic()
                await broker.start()
                load.resume()
                await load.until_answered()
                assert load.first_answer_at is not None
                serving.append(load.first_answer_at - begun)
            await load.until(load.acknowledged + per_life)
            await load.drain()
        finally:
            await load.stop()
    return load, serving


def test_what_was_acknowledged_survives_kill_9(
    tmp_path: Path, rng: random.Random, full: bool, measured: Callable[[str], None]
) -> None:
    kills, per_life = (100, 1100) if full else (5, 120)
    load, serving = asyncio.run(killed(tmp_path, rng, kills, per_life))
    violations = load.ledger.violations(ordered=load.groups)
    found = Counter(violation.rule.name for violation in violations)
    measured(
        f"{kills} kills, {load.acknowledged:,} acknowledged, {len(load.ledger.deliveries):,} "
        "delivered, "
        f"violations {dict(found) or 0}, serving after {median(serving):.2f} s (median), "
        f"{max(serving):.2f} s at most"
    )
    assert violations == []
    assert max(serving) <= SERVING_SECONDS_MAX
    assert load.acknowledged >= (100_000 if full else kills * 50)


async def restarted(home: Path, directory: Path) -> tuple[float, int]:
    """Seconds from the start of the process to the first acknowledgement, and the queue offset of
    that message."""
    settings = {
        **SETTINGS,
        "mappedFileSizeCommitLog": 1 << 30,
        "mappedFileSizeConsumeQueue": 300_000 * 20,
    }
    async with BrokerProcess(home, directory, settings) as broker:
        begun = time.monotonic()
        await broker.start()
        await broker.create_topic(fill_store.TOPIC, fill_store.QUEUES)
        async with Producer(broker.namesrv) as producer:
            result = await producer.send(
                fill_store.TOPIC, b"first", queue=MessageQueue(fill_store.TOPIC, NAME, 0)
            )
        return time.monotonic() - begun, result.queue_offset


def test_a_killed_broker_with_much_to_scan_serves_soon(
    tmp_path: Path, full: bool, measured: Callable[[str], None]
) -> None:
    size = (256 if full else 16) * 1024 * 1024
    source = str(Path(turbopump.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, fill_store.__file__, str(tmp_path / "store"), str(size)],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    written = int(done.stdout)
    seconds, offset = asyncio.run(restarted(tmp_path / "home", tmp_path / "store"))
    measured(f"{size >> 20} MiB in {written:,} messages to scan: serving after {seconds:.2f} s")
    assert offset == -(-written // fill_store.QUEUES)
    assert seconds <= SERVING_SECONDS_MAX
