"""Steps of several orders, handled one after the other within each order.

Payments fail at first: the steps behind them wait, those of other orders may go on. Start
`turbopump dev`, then run `python examples/ordered.py`.
"""

from __future__ import annotations

import asyncio
import os

from turbopump import ConsumeFrom, Delivery, Producer, PushConsumer, Retry

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "order-steps"
ORDERS = ("17", "18", "19")
STEPS = ("ordered", "paid", "packed", "sent")


async def send_steps(producer: Producer, order: str) -> None:
    for step in STEPS:
        # Equal sharding keys go to the same queue, each step behind the awaited one before it.
        await producer.send(TOPIC, step, keys=order, sharding_key=order)


class Tracker:
    """Handler that prints each step, and counts those that have succeeded."""

    def __init__(self) -> None:
        self.handled = 0
        self.finished = asyncio.Event()

    async def handle(self, message: Delivery) -> Retry | None:
        order, step = message.keys[0], message.body.decode()
        if step == "paid" and message.reconsume_times == 0:
            print(f"order {order}: the bank does not answer, try again")
            return Retry(delay=0.2)
        print(f"order {order}: {step}")
        self.handled += 1
        if self.handled == len(ORDERS) * len(STEPS):
            self.finished.set()
        return None


async def main() -> None:
    async with Producer(NAME_SERVER) as producer, asyncio.TaskGroup() as sends:
        for order in ORDERS:
            sends.create_task(send_steps(producer, order))

    tracker = Tracker()
    async with PushConsumer(
        NAME_SERVER,
        group="order-tracking",
        topic=TOPIC,
        ordered=True,
        handler=tracker.handle,
        consume_from=ConsumeFrom.FIRST,
    ):
        await tracker.finished.wait()


if __name__ == "__main__":
    asyncio.run(main())
