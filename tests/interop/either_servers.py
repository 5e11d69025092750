"""Our servers, Apache's newest and Apache's 4.9 in turn, patient with a slow machine: the fixture
of tests that must pass on each.

One rule: nothing here knows which test asks. A test module takes it by ``from
tests.interop.either_servers import servers as servers``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.interop.apache import NEWEST, NEWEST_4
from tests.interop.our_clients import CALL_SECONDS, make_groups
from tests.interop.our_servers import patient_turbopump
from tests.interop.patient_apache import patient_apache

from turbopump.protocol import fastjson
from turbopump.protocol.requests.assignment import (
    MessageRequestMode,
    SetMessageRequestMode,
    SetMessageRequestModeRequestBody,
)
from turbopump.protocol.requests.groups import SubscriptionGroupConfig
from turbopump.remoting.client import RemotingClient

OURS = "turbopump"


class Servers(NamedTuple):
    name: str
    namesrv: str
    broker: str


@pytest.fixture(scope="module", params=[OURS, NEWEST, NEWEST_4])
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == OURS:
        with patient_turbopump(directory) as ours:
            yield Servers(OURS, ours.namesrv, ours.broker)
        return
    with patient_apache(request.param, directory, enablePropertyFilter=True) as cluster:
        yield Servers(f"apache-{request.param}", cluster.namesrv, cluster.broker)


async def set_mode(servers: Servers, topic: str, group: str, mode: MessageRequestMode) -> None:
    await make_groups(servers.broker, SubscriptionGroupConfig(group_name=group))
    client = RemotingClient()
    body = fastjson.encode(
        SetMessageRequestModeRequestBody(topic=topic, consumer_group=group, mode=mode)
    )
    try:
        await client.call(servers.broker, SetMessageRequestMode(), body, timeout=CALL_SECONDS)
    finally:
        await client.close()
