"""Batches that a broker of ours stores as one entry each."""

from __future__ import annotations

from turbopump.message.batch import encode_batch
from turbopump.message.message import Message
from turbopump.protocol.requests.send import SendBatchMessage
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.client import RemotingClient

BODIES = [b"%d" % number for number in range(12)]


async def make_batches(address: str) -> None:
    """Three batches of four messages, tags a and b in turns, as a Java 5 client sends them."""
    remoting = RemotingClient()
    try:
        topic = CreateTopic(
            topic="B", read_queue_nums=1, write_queue_nums=1, attributes="+queue.type=BatchCQ"
        )
        assert (await remoting.exchange(address, topic, timeout=60)).code == 0
        for first in range(0, len(BODIES), 4):
            batch = encode_batch(
                Message(
                    "B",
                    BODIES[number],
                    tags="ab"[number % 2],
                    properties={"UNIQ_KEY": f"ID{number}"},
                )
                for number in range(first, first + 4)
            )
            request = SendBatchMessage(
                topic="B", queue_id=0, batch=True, properties=f"UNIQ_KEY\x01BATCH{first}\x02"
            )
            assert (await remoting.exchange(address, request, batch, timeout=60)).code == 0
    finally:
        await remoting.close()
