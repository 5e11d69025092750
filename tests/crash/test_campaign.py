"""Kills of three brokers (SYNC_FLUSH, ASYNC_FLUSH, tiny files) under plain, ordered, delayed,
timer, transactional, POP and dead-letter load at once: nothing is lost, altered, reordered or
early, and what comes twice is within its bounds.

`make test`: three kills, our clients alone. `make crash`: 300 kills (`--kills 1000` by hand),
Java's clients beside ours. What each message is, and what is owed: ``campaign.py``.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.crash.broker_process import SETTINGS, BrokerProcess
from tests.crash.campaign import (
    LEVELS_S,
    QUEUES,
    STALLS_BESIDE_OTHERS_MS,
    STALLS_MS,
    TOPICS,
    History,
    Verdict,
)
from tests.crash.campaign_clients import JavaClients, OurClients, now_ms, read_all
from tests.interop.tools import skipping_without_tools

from turbopump.protocol import fastjson
from turbopump.protocol.requests.assignment import (
    MessageRequestMode,
    SetMessageRequestMode,
    SetMessageRequestModeRequestBody,
)
from turbopump.remoting.client import RemotingClient

MINUTES_MAX = 25.0
"""Of the kills, unless --kill-minutes says another time."""
DRAINED_S_MAX = 240.0
COMMON: dict[str, object] = {
    **SETTINGS,
    "messageDelayLevel": " ".join(f"{seconds}s" for seconds in LEVELS_S),
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 1000,
    "flushConsumerOffsetInterval": 1000,
}
BROKERS: dict[str, dict[str, object]] = {
    "sync": {"flushDiskType": "SYNC_FLUSH"},
    "async": {"flushDiskType": "ASYNC_FLUSH"},
    "tiny": {
        "flushDiskType": "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": 512 * 1024,
        "mappedFileSizeConsumeQueue": 20 * 500,
        "mappedFileSizeTimerLog": 32 * 1024,
        "maxMessageSize": 16 * 1024,
        "maxHashSlotNum": 500,
        "maxIndexNum": 2000,
    },
}


@asynccontextmanager
async def three_brokers(home: Path) -> AsyncIterator[dict[str, BrokerProcess]]:
    """Started, with all topics; the name server is the first one's."""
    async with AsyncExitStack() as stack:
        brokers: dict[str, BrokerProcess] = {}
        for name, settings in BROKERS.items():
            namesrv = next(iter(brokers.values())).namesrv if brokers else ""
            every = {**COMMON, **settings, "brokerName": name}
            broker = BrokerProcess(home / name, home / f"store-{name}", every, namesrv=namesrv)
            brokers[name] = await stack.enter_async_context(broker)
        await asyncio.gather(*(broker.start() for broker in brokers.values()))
        for broker in brokers.values():
            for topic in TOPICS:
                await broker.create_topic(topic, QUEUES)
            await let_pop(broker, "j-pop")
        yield brokers


async def let_pop(broker: BrokerProcess, group: str) -> None:
    """Push consumers of the group are told to pop."""
    client = RemotingClient()
    body = fastjson.encode(
        SetMessageRequestModeRequestBody(
            topic="pop", consumer_group=group, mode=MessageRequestMode.POP
        )
    )
    try:
        await client.call(broker.address, SetMessageRequestMode(), body)
    finally:
        await client.close()


async def kill_often(
    brokers: dict[str, BrokerProcess],
    history: History,
    rng: random.Random,
    kills: int,
    minutes: float,
) -> None:
    """One broker after the other, each at any moment after the last one serves again; the third of
    every five times once more while it starts. Fewer if the time is up."""
    ends = time.monotonic() + 60 * minutes
    for number in range(kills):
        if time.monotonic() > ends:
            break
        await asyncio.sleep(rng.uniform(0.2, 1.5))
        name = rng.choice(sorted(brokers))
        victim = brokers[name]
        await victim.kill()
        history.kills[name].append(now_ms())
        if number % 5 == 2:
            await victim.spawn()
            await asyncio.sleep(rng.uniform(0.1, 0.8))
            await victim.kill()
            history.kills[name].append(now_ms())
        await victim.start()


async def campaign(
    home: Path, rng: random.Random, kills: int, minutes: float, java: bool, stalls_ms: int
) -> Verdict:
    history = History(groups=("o", "j") if java else ("o",))
    async with AsyncExitStack() as stack:
        brokers = await stack.enter_async_context(three_brokers(home))
        namesrv = brokers["sync"].namesrv
        ours = OurClients(namesrv, sorted(brokers), history, rng, pause_s=0.2 if java else 0.4)
        clients: list[OurClients | JavaClients] = [ours]
        if java:
            clients.append(JavaClients(namesrv, sorted(brokers), history, home / "java"))
        for one in clients:
            stack.push_async_callback(one.close)
            await one.start()
        await kill_often(brokers, history, rng, kills, minutes)
        await asyncio.gather(*(one.stop_sending() for one in clients))
        letters = await drained(namesrv, history)
        return Verdict(history, await read_all(namesrv, TOPICS), letters, stalls_ms)


async def drained(namesrv: str, history: History) -> dict[str, set[str]]:
    """Wait until every group has what it is owed, for a time; the dead letters of each group."""
    owed, deadline = history.owed(), time.monotonic() + DRAINED_S_MAX
    while history.missing(owed) and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    while True:
        letters = {
            group: {one.id for one in await read_all(namesrv, [f"%DLQ%{group}-dead"])}
            for group in history.groups
        }
        if time.monotonic() > deadline or all(owed["dead"] <= each for each in letters.values()):
            return letters
        await asyncio.sleep(0.5)


def judged(
    home: Path,
    rng: random.Random,
    measured: Callable[[str], None],
    kills: int,
    minutes: float | None = None,
    *,
    java: bool,
    stalls_ms: int = STALLS_MS,
) -> None:
    """``minutes``: given by hand, and fewer kills than wanted will do; None: all are wanted."""
    begun = time.monotonic()
    verdict = asyncio.run(campaign(home, rng, kills, minutes or MINUTES_MAX, java, stalls_ms))
    history = verdict.history
    done = sum(map(len, history.kills.values()))
    figures = ", ".join(f"{what} {count:,}" for what, count in sorted(verdict.figures.items()))
    measured(
        f"{done} kills of {kills} wanted, {history.acknowledged:,} acknowledged of "
        f"{len(history.sent):,} sent by {len(history.groups)} kinds of clients, "
        f"{len(verdict.faults)} faults; {figures}; {time.monotonic() - begun:.0f} s"
    )
    assert not verdict.faults, "\n".join(verdict.faults)
    assert minutes is not None or done >= kills, f"{done} kills of {kills} wanted"
    assert history.acknowledged > done * 10


def test_three_kills_under_every_kind_of_load_lose_alter_and_reorder_nothing(
    tmp_path: Path, rng: random.Random, measured: Callable[[str], None]
) -> None:
    judged(tmp_path, rng, measured, 3, java=False, stalls_ms=STALLS_BESIDE_OTHERS_MS)


def test_hundreds_of_kills_under_javas_clients_and_ours_lose_alter_and_reorder_nothing(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    rng: random.Random,
    full: bool,
    measured: Callable[[str], None],
) -> None:
    if not full:
        pytest.skip("a sample is run with our clients alone: --full")
    with skipping_without_tools():
        JavaClients.build()
    kills, minutes = map(request.config.getoption, ("--kills", "--kill-minutes"))
    judged(tmp_path, rng, measured, kills, minutes, java=True)
