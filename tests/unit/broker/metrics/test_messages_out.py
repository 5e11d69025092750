"""Messages that consumers get: by pull, by pop, and from the broker's schedule."""

import asyncio

from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.metrics.scraping import scrape
from tests.unit.broker.popping import Popper
from tests.unit.broker.talking import SERVER, Talk, in_virtual_time

from turbopump.protocol.requests.groups import DeleteGroup

OUT = "messages_out_total"


@in_loop(in_virtual_time, message_delay_level="1s")
async def test_pulls_count_by_group_but_not_those_of_retry_topics(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    await talk.client.create("%RETRY%g")
    for _ in range(3):
        await talk.client.send()
    await talk.client.send(topic="%RETRY%g")
    await talk.client.send(properties="DELAY\x011\x02")
    await asyncio.sleep(3)
    assert simulation.loop.time() > 3
    for topic in ("T", "%RETRY%g"):
        await talk.client.pull(topic=topic)
    await talk.client.pull(2, consumer_group="CID_RMQ_SYS_x")
    found = scrape(talk.broker, OUT)
    assert found == {
        f"{OUT} topic=T consumer_group=g is_system=false": 4,
        f"{OUT} topic=T consumer_group=CID_RMQ_SYS_x is_system=true": 2,
        f"{OUT} topic=SCHEDULE_TOPIC_XXXX consumer_group=SCHEDULE_CONSUMER is_system=true": 1,
    }
    assert min(scrape(talk.broker, "throughput_out_total").values()) > 90
    delete = DeleteGroup(group_name="g", clean_offset=True)
    assert (await talk.client.code(delete))[0] == 0
    assert [one for one in scrape(talk.broker, OUT) if "group=g " in one] == []


@in_loop(in_virtual_time)
async def test_a_pop_counts_for_its_topic_and_says_if_it_read_the_retry_topic(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    for _ in range(3):
        await talk.client.send()
    popper = Popper(talk.client, simulation.clock(SERVER).now_ms)
    assert len(await popper.pop(invisible_ms=2000)) == 3
    await popper.until(3, 20)
    assert scrape(talk.broker, OUT) == {
        f"{OUT} topic=T consumer_group=g is_system=false is_retry=false": 3,
        f"{OUT} topic=T consumer_group=g is_system=false is_retry=true": 3,
    }
