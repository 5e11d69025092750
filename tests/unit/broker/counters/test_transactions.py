"""Metrics of transactions: ends, durations, and what is open, also after a restart."""

import asyncio

from tests.loops import in_loop
from tests.unit.broker.metrics.scraping import scrape
from tests.unit.broker.transacting import World, in_a_world

from turbopump.protocol.requests.send import TransactionOutcome

NAMES = (
    "half_messages",
    "commit_messages_total",
    "rollback_messages_total",
    "finish_message_latency_milliseconds_sum",
)


@in_loop(in_a_world)
async def test_ends_and_open_transactions_count_by_their_topic(world: World, /) -> None:
    transactor = world.transactor()
    await transactor.announce()
    await transactor.client.create()
    halves = [await transactor.prepare(b"%d" % number) for number in range(5)]
    await asyncio.sleep(3)
    for half in halves[:2]:
        assert (await transactor.end(half, TransactionOutcome.COMMIT)).code == 0
    assert (await transactor.end(halves[2], TransactionOutcome.ROLLBACK)).code == 0
    await transactor.end(halves[0], TransactionOutcome.COMMIT)
    assert scrape(world.broker, *NAMES) == {
        "half_messages topic=T": 2,
        "commit_messages_total topic=T": 2,
        "rollback_messages_total topic=T": 1,
        "finish_message_latency_milliseconds_sum topic=T": 6,
    }


@in_loop(in_a_world)
async def test_after_a_restart_the_open_transactions_of_the_last_run_count(world: World, /) -> None:
    transactor = world.transactor()
    await transactor.announce()
    await transactor.client.create()
    halves = [await transactor.prepare(b"%d" % number) for number in range(4)]
    assert (await transactor.end(halves[1], TransactionOutcome.COMMIT)).code == 0
    await world.stop()
    await world.start()
    transactor = world.transactor()
    await asyncio.sleep(1)
    assert scrape(world.broker, "half_messages") == {"half_messages topic=T": 3}
    assert (await transactor.end(halves[0], TransactionOutcome.ROLLBACK)).code == 0
    assert scrape(world.broker, "half_messages") == {"half_messages topic=T": 2}


@in_loop(in_a_world, transaction_check_max=1, transaction_check_interval=1000)
async def test_a_transaction_that_is_given_up_is_no_longer_open(world: World, /) -> None:
    transactor = world.transactor()
    await transactor.announce()
    await transactor.client.create()
    await transactor.prepare()
    assert scrape(world.broker, "half_messages") == {"half_messages topic=T": 1}
    await asyncio.sleep(60)
    assert len(transactor.asked) == 1
    assert scrape(world.broker, "half_messages") == {"half_messages topic=T": 0}
