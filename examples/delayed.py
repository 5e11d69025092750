"""Messages that are delivered later, and one that is recalled before it is due.

Start `turbopump dev`, then run `python examples/delayed.py`.
"""

from __future__ import annotations

import asyncio
import os
import time
from datetime import datetime, timedelta

from turbopump import ConsumeFrom, Message, Producer, PushConsumer

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "reminders"


async def main() -> None:
    begun = time.monotonic()
    async with Producer(NAME_SERVER) as producer:
        await producer.send(Message(TOPIC, "ship order 17", delay=timedelta(seconds=1)))
        reminder = await producer.send(Message(TOPIC, "remind the buyer of order 18", delay=2))
        deadline = datetime.now().astimezone() + timedelta(seconds=3)
        await producer.send(Message(TOPIC, "cancel order 19", deliver_at=deadline))
        print("sent three messages for later")

        assert reminder.recall_handle is not None  # every message for later has one
        await producer.recall(TOPIC, reminder.recall_handle)
        print("order 18 is paid: recalled its reminder")

    async with PushConsumer(
        NAME_SERVER, group="reminding", topic=TOPIC, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        async for message in consumer:
            print(f"after {time.monotonic() - begun:.1f} s: {message.body.decode()}")
            if message.body == b"cancel order 19":
                message.done()  # a message before a break is not done by itself
                break


if __name__ == "__main__":
    asyncio.run(main())
