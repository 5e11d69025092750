"""kill -9 of `turbopump dlq resend` in the middle of its work, again and again: every dead letter
is resent once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import turbopump
from turbopump.blocking import Message, Producer, PullConsumer
from turbopump.client.dead_letters.journal import read_journal, read_unlocked
from turbopump.testing import BrokerThread

GROUP = "billing"
DEADLINE_S = 120.0


def resending(
    broker: BrokerThread, journal: Path, rate: int | None = None
) -> subprocess.Popen[str]:
    """The command, in a process of its own."""
    arguments = [
        "dlq",
        "resend",
        GROUP,
        "--all",
        "--output",
        "json",
        "--journal",
        str(journal),
        "-n",
        broker.namesrv,
        *([] if rate is None else ["--rate", str(rate)]),
    ]
    environment = os.environ | {"PYTHONPATH": str(Path(turbopump.__file__).parent.parent)}
    return subprocess.Popen(
        [sys.executable, "-m", "turbopump", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def killed_at(process: subprocess.Popen[str], journal: Path, size: int, delay: float) -> bool:
    """Kill it when its journal has grown to `size` bytes and says what is going to be sent, `delay`
    seconds later; False if it ended before."""
    deadline = time.monotonic() + DEADLINE_S
    path = journal / f"{GROUP}.journal"
    while process.poll() is None:
        assert time.monotonic() < deadline
        if (
            path.exists()
            and path.stat().st_size >= size
            and b'"aim"' in path.read_bytes().splitlines()[-1]
        ):
            time.sleep(delay)  # the letters are sent now
            process.kill()
            process.communicate()
            return process.returncode < 0
        time.sleep(0.0005)
    return False


def bodies(broker: BrokerThread, topic: str) -> Counter[bytes]:
    """How often each body is in a topic."""
    found: Counter[bytes] = Counter()
    with PullConsumer(broker.namesrv, group="looker") as consumer:
        for queue in consumer.queues(topic):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset)
                found.update(message.body for message in result.messages)
                offset = result.next_offset
    return found


def test_dead_letters_are_resent_once_through_kills(
    tmp_path: Path, rng: random.Random, full: bool, measured: Callable[[str], None]
) -> None:
    # few are sent slowly, or the last would be gone before a busy machine sees that it is time
    count, kills, rate = (10_000, 12, None) if full else (500, 2, 100)
    journal = tmp_path / "journal"
    with BrokerThread() as broker:
        broker.create_topic("orders", 4)
        broker.create_topic(f"%DLQ%{GROUP}", 1)
        with Producer(broker.namesrv) as producer:
            for number in range(count):
                body = b"letter %d" % number
                producer.send(Message.as_it_is(f"%DLQ%{GROUP}", body, {"RETRY_TOPIC": "orders"}))
        line = 60  # bytes of a journal for a letter that was aimed
        done = doubts = 0
        for number in range(kills):
            size = int(count * line * (number + rng.uniform(0.3, 1.0)) / (kills + 1))
            done += killed_at(
                resending(broker, journal, rate), journal, size, rng.uniform(0, 0.015)
            )
            doubts += len(read_journal(read_unlocked(journal, GROUP), journal)[0].in_doubt)
        begun = time.monotonic()
        last = resending(broker, journal)
        out, err = last.communicate(timeout=DEADLINE_S)
        seconds = time.monotonic() - begun
        assert last.returncode == 0, err
        report = json.loads(out)
        found = bodies(broker, "orders")
    measured(
        f"{count:,} dead letters, {done} kills that left {doubts} in doubt: {len(found):,} "
        "arrived, "
        f"{sum(found.values()) - len(found)} twice; the last run sent {report['sent']:,} in "
        f"{seconds:.1f} s"
    )
    assert done == kills, "every kill came before the end"
    assert doubts or not full, "kills left letters of which nobody knew whether they had been sent"
    assert found == Counter({b"letter %d" % number: 1 for number in range(count)})
    assert report["sent"] + report["already"] == count
