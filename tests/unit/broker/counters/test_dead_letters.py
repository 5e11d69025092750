"""Messages that become dead letters, whoever sends them there."""

import asyncio

from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.metrics.scraping import scrape
from tests.unit.broker.popping import Popper
from tests.unit.broker.talking import SERVER, Talk, in_virtual_time

from turbopump.protocol import fastjson
from turbopump.protocol.requests.groups import CreateGroup, DeleteGroup, SubscriptionGroupConfig
from turbopump.protocol.requests.send import ConsumerSendMsgBack

DEAD = "send_to_dlq_messages_total"


@in_loop(in_virtual_time)
async def test_dead_letters_count_by_the_topic_that_the_request_names(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    await talk.client.send()
    (message,) = await talk.client.messages()
    back = ConsumerSendMsgBack(
        offset=message.commit_log_offset, group="g", delay_level=-1, origin_topic="T"
    )
    assert (await talk.client.code(back))[0] == 0
    back.delay_level = 1
    assert (await talk.client.code(back))[0] == 0
    await talk.client.send(
        topic="%RETRY%g",
        producer_group="g",
        reconsume_times=20,
        max_reconsume_times=16,
        properties="DELAY\x013\x02",
    )
    group = SubscriptionGroupConfig(group_name="pops", retry_max_times=0)
    assert (await talk.client.code(CreateGroup(), fastjson.encode(group)))[0] == 0
    popper = Popper(talk.client, simulation.clock(SERVER).now_ms, group="pops")
    assert len(await popper.pop(invisible_ms=1000)) == 1
    await asyncio.sleep(20)
    assert scrape(talk.broker, DEAD) == {
        f"{DEAD} consumer_group=g topic=T is_system=false": 1,
        f"{DEAD} consumer_group=g topic=%RETRY%g is_system=false": 1,
        f"{DEAD} consumer_group=pops topic=T is_system=false": 1,
    }
    assert (await talk.client.code(DeleteGroup(group_name="g", clean_offset=False)))[0] == 0
    assert list(scrape(talk.broker, DEAD)) == [
        f"{DEAD} consumer_group=pops topic=T is_system=false"
    ]
