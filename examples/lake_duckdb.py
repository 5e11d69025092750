"""Orders that the archive pipeline writes into a lake of Parquet files, and DuckDB adds up.

Start `turbopump dev`, then run `python examples/lake_duckdb.py` (needs `turbopump[spark]` and
`duckdb`). The lake is in a temporary directory here.
"""

from __future__ import annotations

import json
import os
import tempfile

import duckdb

from turbopump import Message
from turbopump.blocking import Producer
from turbopump.spark import archive as lake
from turbopump.spark import end_session, rocketmq_session
from turbopump.spark.pipelines import archive, json_bodies

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "sold"
PRICES = {"book": 12.5, "pen": 1.25, "lamp": 80.0}
SCHEMA = "item string not null, quantity int, price decimal(8, 2)"
QUIET = {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}


def send_orders() -> None:
    orders = []
    for number in range(100):
        for item, price in PRICES.items():
            order = {"item": item, "quantity": 1 + number % 2, "price": price}
            orders.append(Message(TOPIC, json.dumps(order)))
    with Producer(NAME_SERVER) as producer:
        producer.send_batch(orders)
    print(f"sent {len(orders)} orders")


def add_up(directory: str) -> None:
    # Called again, it adds the messages that were sent since, each of them once.
    report = archive(directory, [TOPIC], name_server=NAME_SERVER, bodies=json_bodies(SCHEMA))
    print(f"archived {report.rows} rows, and the counts {'agree' if report.agrees else 'DIFFER'}")
    orders = duckdb.from_arrow(lake.dataset(directory))
    sums = orders.aggregate("item, sum(quantity) as sold, sum(quantity * price) as revenue")
    sums.order("revenue desc").show()


if __name__ == "__main__":
    send_orders()
    session = rocketmq_session("orders", conf=QUIET)
    with tempfile.TemporaryDirectory() as directory:
        add_up(directory)
    end_session(session)
