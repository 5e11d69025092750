"""Connected clients by language and version."""

from tests.loops import in_loop
from tests.unit.broker.metrics.scraping import scrape
from tests.unit.broker.talking import Talk, converse

VERSION = "version=v5_3_3 protocol_type=remoting"


@in_loop(converse)
async def test_connections_count_by_software_and_consumers_by_group_and_mode(talk: Talk, /) -> None:
    await talk.client.join("c1", consumeType="CONSUME_POP")
    await talk.another().join("c2", "CID_RMQ_SYS_x", consumeType="CONSUME_ACTIVELY")
    for client_id in ("p1", "p2"):
        producing = {"clientID": client_id, "producerDataSet": [{"groupName": "p"}]}
        await talk.another().heartbeat(producing)
    assert scrape(talk.broker, "producer_connections", "consumer_connections") == {
        f"producer_connections language=python {VERSION}": 2,
        "consumer_connections consumer_group=g language=python version=v5_3_3 consume_mode=pop "
        "protocol_type=remoting is_system=false": 1,
        "consumer_connections consumer_group=CID_RMQ_SYS_x language=python version=v5_3_3 "
        "consume_mode=pull protocol_type=remoting is_system=true": 1,
    }
