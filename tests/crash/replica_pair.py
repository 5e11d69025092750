"""A SYNC_MASTER with `inSyncReplicas=2` and its one slave, each a process of its own."""

import asyncio

from tests.crash.broker_process import SETTINGS
from tests.unit.broker.talking import Client

from turbopump.message.codec import decode_entries
from turbopump.protocol.requests.pull import PullMessageReply
from turbopump.protocol.requests.send import SendMessageV2

PATIENCE_S = 60.0
BOTH: dict[str, object] = {**SETTINGS, "flushDiskType": "ASYNC_FLUSH"}
MASTER: dict[str, object] = {**BOTH, "brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
SLAVE: dict[str, object] = {**BOTH, "brokerRole": "SLAVE", "brokerId": 1}


async def in_sync(client: Client) -> None:
    """Wait until a send is acknowledged: the slave is there."""
    async with asyncio.timeout(PATIENCE_S):
        while (await client.ask(SendMessageV2(topic="T", queue_id=0), b"first")).code != 0:
            await asyncio.sleep(0.05)


async def all_bodies(client: Client, topic: str = "T") -> set[bytes]:
    """All messages of the first queue of a topic."""
    found: set[bytes] = set()
    offset = 0
    while True:
        answer, header = await client.pull(offset, topic=topic)
        assert isinstance(header, PullMessageReply)
        found |= {message.body for message in decode_entries(answer.body)}
        if header.next_begin_offset <= offset:
            return found
        offset = header.next_begin_offset
