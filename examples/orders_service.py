"""An orders service: `POST /orders` sends an order, and a consumer in the same program bills it.

Start `turbopump dev`, then run `python examples/orders_service.py` and try it on the page
http://127.0.0.1:8000/docs. Ctrl-C stops it.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from turbopump import ClientError, ConsumeFrom, Delivery, Producer, PushConsumer

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "placed-orders"
logging.basicConfig()  # shows what a consumer's handler raises


class Order(BaseModel):
    item: str
    quantity: int = Field(gt=0)


billed: dict[str, Order] = {}
"""Stands for a database."""


async def bill(message: Delivery) -> None:
    order, order_id = Order.model_validate_json(message.body), message.keys[0]
    billed[order_id] = order
    print(f"billed order {order_id}: {order.quantity} of {order.item}")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    consumer = PushConsumer(
        NAME_SERVER,
        group="orders-service",
        topic=TOPIC,
        handler=bill,
        consume_from=ConsumeFrom.FIRST,
    )
    # One producer for the life of the program: all requests share it.
    async with Producer(NAME_SERVER) as app.state.producer, consumer:
        yield


def shared_producer(request: Request) -> Producer:
    producer: Producer = request.app.state.producer
    return producer


app = FastAPI(title="Orders", lifespan=lifespan)


@app.post("/orders", status_code=202)
async def place(
    order: Order, producer: Annotated[Producer, Depends(shared_producer)]
) -> dict[str, str]:
    order_id = uuid.uuid4().hex[:8]
    try:
        await producer.send(TOPIC, order.model_dump_json(), keys=order_id)
    except ClientError as error:  # no broker took it
        raise HTTPException(503, "the order was not taken, please try again") from error
    return {"id": order_id}


@app.get("/orders/{order_id}")
async def show(order_id: str) -> Order:
    if order_id not in billed:
        raise HTTPException(404, f"no order {order_id} has been billed")
    return billed[order_id]


if __name__ == "__main__":
    uvicorn.run(app)
