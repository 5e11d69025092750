"""No request keeps a name server's loop for longer than a turn may last (``TURN_MAX_S``)."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.unit.metered_loop import TURN_MAX_S, BlockingClient, Metered, metered
from tests.unit.protocol.compressed_registration import encode_compressed

from turbopump.broker.topics import plain_topic
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.namesrv.server import NameServer
from turbopump.protocol.request import Request
from turbopump.protocol.requests.namesrv import (
    GetAllTopicList,
    GetBrokerClusterInfo,
    GetRouteInfo,
    RegisterBroker,
    RegisterBrokerBody,
)
from turbopump.protocol.requests.topics import DataVersion, TopicConfigAndMappingSerializeWrapper

BROKERS, TOPICS_EACH, TOPICS_OF_ONE = 200, 50, 5000


@asynccontextmanager
async def name_server() -> AsyncIterator[tuple[NameServer, int]]:
    server = NameServer(NamesrvConfig())
    _, port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.close()


def topics(count: int) -> RegisterBrokerBody:
    names = [f"topic-number-{number}" for number in range(count)]
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigAndMappingSerializeWrapper(
            data_version=DataVersion(counter=1, timestamp=1),
            topic_config_table={name: plain_topic(name, 8) for name in names},
        )
    )


def registration(number: int, **more: Any) -> RegisterBroker:
    return RegisterBroker(
        cluster_name="c",
        broker_name=f"broker-{number}",
        broker_id=0,
        broker_addr=f"10.0.0.{number}:10911" if number < 256 else f"10.0.1.{number - 256}:10911",
        ha_server_addr="10.0.0.1:10912",
        **more,
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Metered[tuple[NameServer, int]]]:
    """Of 200 brokers, each of which has the same 50 topics."""
    body = topics(TOPICS_EACH).encode()
    with metered(name_server) as running, BlockingClient(running.server[1]) as brokers:
        for number in range(BROKERS):
            assert brokers.ask(registration(number), body).code == 0
        yield running


@pytest.fixture
def client(server: Metered[tuple[NameServer, int]]) -> Iterator[BlockingClient]:
    with BlockingClient(server.server[1]) as client:
        yield client


LARGE = topics(TOPICS_OF_ONE)
ASKED: dict[str, tuple[Request[Any], bytes, int]] = {
    "thousands of topics": (registration(300), LARGE.encode(), 1),
    "the same compressed": (registration(301, compressed=True), encode_compressed(LARGE), 1),
    "a route of 200 brokers": (GetRouteInfo(topic="topic-number-1"), b"", 1),
    "many such routes at once": (GetRouteInfo(topic="topic-number-1"), b"", 200),
    "all brokers": (GetBrokerClusterInfo(), b"", 1),
    "all topics": (GetAllTopicList(), b"", 20),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_request(
    server: Metered[tuple[NameServer, int]], client: BlockingClient, name: str
) -> None:
    request, body, times = ASKED[name]
    frames = b"".join(client.frame(request, body) for _ in range(times))

    def ask() -> None:
        writing = threading.Thread(target=client.write, args=(frames,))
        writing.start()
        answers = client.read(times)
        writing.join()
        assert {answer.code for answer in answers} == {0}

    assert server.longest_turn(ask) <= TURN_MAX_S
