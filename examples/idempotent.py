"""Payments that come twice, and are charged once.

The keys of charged payments are in `charged.db`: a second run charges nothing. Start
`turbopump dev`, then run `python examples/idempotent.py`.
"""

from __future__ import annotations

import asyncio
import os

from turbopump import ConsumeFrom, IdempotentConsumer, Producer, PushConsumer, SqliteStore

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "payments"
PAYMENTS = (("17", "12.50"), ("18", "80.00"), ("17", "12.50"), ("19", "5.00"), ("18", "80.00"))


async def send(producer: Producer) -> None:
    for payment, amount in PAYMENTS:
        await producer.send(TOPIC, amount, keys=payment, properties={"payment": payment})


async def charge(consumer: PushConsumer, store: SqliteStore) -> None:
    once = IdempotentConsumer(key="payment", store=store, name="charging")
    handled = 0
    async for message in consumer:
        payment = message.properties["payment"]
        async with once.handling(message) as first:
            if first:
                print(f"payment {payment}: charged {message.body.decode()} EUR")
            else:
                print(f"payment {payment}: charged before, skipped")
        handled += 1
        if handled == len(PAYMENTS):
            message.done()  # a message before a break is not done by itself
            break


async def main() -> None:
    async with Producer(NAME_SERVER) as producer:
        await send(producer)

    store = SqliteStore("charged.db")
    async with PushConsumer(
        NAME_SERVER, group="charging", topic=TOPIC, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        await charge(consumer, store)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
