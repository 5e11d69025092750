"""Everything a broker has, as a client reads it."""

from turbopump.client.pull_consumer import PullConsumer, PullStatus


async def pulled(namesrv: str, topic: str) -> dict[tuple[int, int], bytes]:
    """(queue, offset) to body, from the start of every queue to its end. Asserts that reading gets
    on."""
    found: dict[tuple[int, int], bytes] = {}
    async with PullConsumer(namesrv, group="auditor") as consumer:
        for queue in await consumer.queues(topic):
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                if result.status is PullStatus.FOUND:
                    found.update(
                        {
                            (queue.queue_id, message.queue_offset): message.body
                            for message in result.messages
                        }
                    )
                assert result.next_offset > offset, f"{queue} is stuck at {offset}: {result.status}"
                offset = result.next_offset
    return found
