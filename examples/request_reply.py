"""A producer that asks for prices and waits for the replies of a consumer.

Both sides are in one program here; they may run anywhere. Start `turbopump dev`, then run
`python examples/request_reply.py`.
"""

from __future__ import annotations

import asyncio
import os

from turbopump import ConsumeFrom, Delivery, Message, Producer, PushConsumer, ReplyError

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "price-requests"
PRICES = {"a book": "12.50 EUR", "a pen": "1.20 EUR"}


async def ask(producer: Producer, item: str) -> None:
    reply = await producer.request(Message(TOPIC, item), timeout=10)
    print(f"{item}: {reply.body.decode()}")


async def main() -> None:
    async def answer(request: Delivery) -> None:
        item = request.body.decode()
        try:
            await consumer.reply(request, PRICES.get(item, "not for sale"))
        except ReplyError:
            # Raised again, it would bring the request once more, to the same end.
            print(f"nobody waits for the price of {item} any more")

    consumer = PushConsumer(
        NAME_SERVER, group="price-desk", topic=TOPIC, handler=answer, consume_from=ConsumeFrom.FIRST
    )
    async with consumer, Producer(NAME_SERVER) as producer:
        for item in ("a book", "a pen", "a ship"):
            await ask(producer, item)


if __name__ == "__main__":
    asyncio.run(main())
