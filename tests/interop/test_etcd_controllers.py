"""Two of our controllers, three members of Debian's etcd, three of our replicas: what is told and
what is acknowledged while one after the other is away."""

from __future__ import annotations

import time
from pathlib import Path

from tests.interop.controlled_group import controlled_group
from tests.interop.tools import skipping_without_tools
from tests.loops import in_loop
from tests.waits import until

from turbopump import Producer

TOPIC = "T"


@in_loop
async def test_another_controller_leads_and_replicas_follow_it(
    tmp_path: Path, summary: list[str]
) -> None:
    with skipping_without_tools():
        async with controlled_group(tmp_path) as group, Producer(group.namesrv) as producer:
            await group.admin.topics.create(TOPIC)
            await producer.send(TOPIC, b"1")
            first = await group.until_leader()
            known = await group.group(first)
            await first.kill()
            killed_at = time.monotonic()
            second = await group.until_leader(first)
            summary.append(
                f"controller killed: another leads after {time.monotonic() - killed_at:.1f} s"
            )
            after = await group.group(second)
            assert (after.master_id, after.master_epoch) == (known.master_id, known.master_epoch)
            assert after.in_sync == known.in_sync

            await producer.send(TOPIC, b"2")
            await group.broker_at(known.master_address).kill()
            elected = await group.until_in_sync(2, besides=known.master_id)
            assert elected.master_epoch > known.master_epoch
            await producer.send(TOPIC, b"3")

            await first.start()
            await until(lambda: f"leader={second.address}" in first.log)
            second.freeze()
            again = await group.until_leader(second)
            assert again is first
            before = await group.until_in_sync(2)
            second.thaw()
            assert await group.until_leader() is first
            assert await group.group(first) == before


@in_loop
async def test_without_a_majority_of_etcd_masters_go_on_and_nothing_is_decided(
    tmp_path: Path,
) -> None:
    with skipping_without_tools():
        async with controlled_group(tmp_path) as group, Producer(group.namesrv) as producer:
            await group.admin.topics.create(TOPIC)
            before = await group.group(await group.until_leader())
            group.etcd.kill(0)
            await producer.send(TOPIC, b"one member is gone")
            group.etcd.kill(1)
            await group.until_no_leader()
            for number in range(20):
                await producer.send(TOPIC, b"%d" % number)
            assert any("etcd cannot be used" in one.log for one in group.controllers)

            group.etcd.start(0)
            after = await group.group(await group.until_leader())
            assert (after.master_id, after.master_epoch) == (before.master_id, before.master_epoch)
            assert after.in_sync == before.in_sync
            await producer.send(TOPIC, b"etcd is back")
