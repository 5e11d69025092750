"""`turbopump exporter` shows Apache's brokers, of 5.x and of 4.x."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.apache import NEWEST, NEWEST_4, ApacheCluster
from tests.interop.our_clients import eventually, letters, make_topics, send_all
from tests.interop.our_servers import turbopump
from tests.interop.tools import skipping_without_tools
from tests.loops import in_loop

from turbopump import ConsumeFrom, Producer, PushConsumer
from turbopump.admin.exporter.runtime_metrics import RUNTIME_FAMILIES, SPREAD

MESSAGES = 20


@pytest.fixture(params=[NEWEST, NEWEST_4])
def apache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ApacheCluster]:
    with (
        skipping_without_tools(),
        ApacheCluster(request.param, directory=tmp_path / "apache") as cluster,
    ):
        yield cluster


def samples(address: str) -> dict[str, dict[str, float]]:
    """Values on a page by metric and by the text of the labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    found: dict[str, dict[str, float]] = {}
    for name, labels, value in re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", page, re.MULTILINE):
        found.setdefault(name, {})[labels] = float(value)
    return found


def missing_figures(address: str) -> set[str]:
    """Names of the runtime figures that a page lacks, without those of the first minute."""
    after_a_minute = {family.name for family in SPREAD.values()}
    wanted = {family.name for family in RUNTIME_FAMILIES} - after_a_minute
    return wanted - samples(address).keys()


@in_loop
async def test_topics_groups_and_figures_of_apache_s_broker_are_shown(
    apache: ApacheCluster, tmp_path: Path
) -> None:
    await make_topics(apache.namesrv, apache.broker, "orders")
    read: list[str] = []
    async with (
        Producer(apache.namesrv) as producer,
        PushConsumer(
            apache.namesrv,
            group="billing",
            topic="orders",
            consume_from=ConsumeFrom.FIRST,
            handler=lambda message: read.append(message.msg_id),
        ) as consumer,
    ):
        await send_all(producer, letters("orders", MESSAGES))
        await eventually("the group reads all", lambda: len(read) == MESSAGES)
        await consumer.commit()
        broker = f'cluster="DefaultCluster",broker="{apache.broker_name}"'
        group = f'{broker},topic="orders",group="billing"'
        command = ["exporter", "-n", apache.namesrv, "--port", "0", "--interval", "1"]
        with turbopump(command, r"ready exporter=(\S+)", tmp_path) as (address,):
            await eventually(
                "the offsets of the group are shown",
                lambda: samples(address).get("rocketmq_consumer_offset", {}).get(group) == MESSAGES,
            )
            # 4.x has no rates in its first 10 s
            await eventually(
                lambda: f"runtime figures are not shown: {missing_figures(address)}",
                lambda: not missing_figures(address),
            )
            shown = samples(address)
    assert shown["rocketmq_producer_offset"][f'{broker},topic="orders"'] == MESSAGES
    behind = 'group="billing",topic="orders",countOfOnlineConsumers="1",msgModel="1"'
    assert shown["rocketmq_group_diff"][behind] == 0
    assert shown["rocketmq_group_get_latency_by_storetime"][group] == 0
    assert any('group="billing"' in labels for labels in shown["rocketmq_client_consume_rt"])
