"""The code of an error where no server has said one: Apache's client codes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import ScriptedCluster, scripted_cluster

from turbopump.errors import ClientErrorCode, RouteNotFoundError, SendError
from turbopump.protocol.codes import RequestCode


def says_nothing(cluster: ScriptedCluster) -> None:
    cluster.broker.script[RequestCode.SEND_MESSAGE_V2] += [None]


def has_no_master(cluster: ScriptedCluster) -> None:
    """As an ordered topic, whose queues stay in the route."""
    route = cluster.name_server.routes["orders"]
    route.order_topic_conf = f"{cluster.broker.name}:1"
    route.broker_datas[0].broker_addrs = {1: cluster.broker.address}


def is_unknown(cluster: ScriptedCluster) -> None:
    cluster.name_server.routes.clear()


@pytest.mark.parametrize(
    ("happens", "error", "code"),
    [
        (says_nothing, SendError, ClientErrorCode.ACCESS_BROKER_TIMEOUT),
        (has_no_master, SendError, ClientErrorCode.BROKER_NOT_EXIST),
        (is_unknown, RouteNotFoundError, ClientErrorCode.NOT_FOUND_TOPIC),
    ],
)
@in_loop(simulated)
async def test_an_error_of_a_send_has_the_code_of_its_cause(
    simulation: Simulation,
    /,
    happens: Callable[[ScriptedCluster], None],
    error: type[SendError | RouteNotFoundError],
    code: int,
) -> None:
    async with scripted_cluster(simulation) as cluster:
        happens(cluster)
        async with producer_of(cluster, retries=0) as producer:
            with pytest.raises(error) as caught:
                await producer.send("orders", b"x")
    assert caught.value.code == code


@in_loop(simulated)
async def test_without_a_name_server_the_code_says_so(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster:
        await cluster.name_server.stop()
        async with producer_of(cluster) as producer:
            with pytest.raises(RouteNotFoundError) as caught:
                await producer.send("orders", b"x")
    assert caught.value.code == ClientErrorCode.NO_NAME_SERVER
