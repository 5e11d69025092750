"""Bookings that are announced if, and only if, the database has taken them.

The second booking of a seat is rolled back, and its message is never delivered. Start
`turbopump dev`, then run `python examples/transaction.py`; the database is `bookings.db`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing

from turbopump import (
    ConsumeFrom,
    Message,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "bookings"
TABLE = "create table bookings (seat text primary key, transaction_id text)"


def database() -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect("bookings.db"))


def book(message: Message, seat: str) -> TransactionState:
    """Book the seat, and note in the same transaction that it belongs to this message."""
    row = (seat, message.properties["__transactionId__"])
    try:
        with database() as connection, connection:
            connection.execute("insert into bookings values (?, ?)", row)
    except sqlite3.IntegrityError:
        return TransactionState.ROLLBACK
    return TransactionState.COMMIT


def look_up(message: ReceivedMessage) -> TransactionState:
    """Answer a broker that did not learn how `book` ended, after a crash for example."""
    query = "select 1 from bookings where transaction_id = ?"
    with database() as connection:
        found = connection.execute(query, (message.properties["__transactionId__"],)).fetchone()
    return TransactionState.COMMIT if found else TransactionState.ROLLBACK


async def main() -> None:
    with database() as connection:  # all seats are free when this program begins
        connection.executescript(f"drop table if exists bookings; {TABLE}")

    booked = 0
    async with TransactionProducer(
        NAME_SERVER, group="bookings", executor=book, checker=look_up
    ) as producer:
        for seat in ("7A", "7A", "7B"):
            result = await producer.send_in_transaction(Message(TOPIC, seat), seat)
            print(f"seat {seat}: {result.state.name.lower()}")
            booked += result.state is TransactionState.COMMIT

    async with PushConsumer(
        NAME_SERVER, group="tickets", topic=TOPIC, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        async for message in consumer:
            print(f"ticket for seat {message.body.decode()}")
            booked -= 1
            if not booked:
                message.done()  # a message before a break is not done by itself
                break


if __name__ == "__main__":
    asyncio.run(main())
