"""Times of answers by request and answer, and requests that wait."""

import asyncio

from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.metrics.reading import distribution, series
from tests.unit.broker.popping import Popper
from tests.unit.broker.replicas import MASTER, SLAVE, SYNC, Replicas, until_joined, with_replicas
from tests.unit.broker.talking import Talk, in_virtual_time

from turbopump.broker.metrics.requests import PROCESSORS_WITHOUT_QUEUE, RPC_LATENCY, WATERMARK
from turbopump.config.broker_config import FlushDiskType
from turbopump.metrics.family import Distribution
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests.offsets import UpdateConsumerOffset
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.remoting.answer_times import BOUNDS_MS


class Strange(Request[None]):
    """Request with a code that does not exist."""

    code = 77_777


def counts(talk: Talk, request: str) -> dict[tuple[str, str, str], Distribution]:
    """Distributions of a request by response code, long polling and result."""
    found = series(talk.broker, RPC_LATENCY)
    assert all(labels[0] == "remoting" for labels in found)
    return {labels[2:]: distribution(one) for labels, one in found.items() if labels[1] == request}


@in_loop(in_virtual_time)
async def test_an_answer_in_the_turn_of_its_request_counts_below_a_millisecond(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    for _ in range(3):
        await talk.client.send()
    answers = counts(talk, "send_message_v2")
    assert answers == {("success", "false", "success"): Distribution((3, *[0] * 9), 0)}
    assert len(BOUNDS_MS) == 9


@in_loop(in_virtual_time)
async def test_a_pull_that_waited_counts_as_long_polling_with_its_whole_time(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    waiting = asyncio.ensure_future(talk.client.pull(suspend_ms=60_000))
    await asyncio.sleep(1.5)
    await talk.client.send()
    await waiting
    await talk.client.pull()
    await talk.client.pull(1, suspend_ms=3000)
    answers = counts(talk, "pull_message")
    assert answers["success", "false", "success"].counts[0] == 1
    waited = answers["success", "true", "success"]
    assert waited.counts == (*[0] * 7, 1, 0, 0), "between 1 and 2 s"
    assert 1400 <= waited.total <= 1500
    assert answers["pull_not_found", "true", "success"].counts[8] == 1


@in_loop(in_virtual_time)
async def test_a_pop_that_waited_counts_as_long_polling(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    popper = Popper(talk.client, talk.broker.clock.now_ms)
    await popper.answer(poll_ms=2000)
    assert counts(talk, "pop_message").keys() == {("polling_timeout", "true", "success")}


@in_loop(in_virtual_time)
async def test_one_way_requests_and_unknown_requests_are_counted(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    address = talk.client.address
    one_way = SendMessageV2(topic="T", queue_id=0)
    await talk.client.remoting.send_oneway(address, one_way, b"x", timeout=5)
    offset = UpdateConsumerOffset(consumer_group="g", topic="T", queue_id=0, commit_offset=0)
    await talk.client.remoting.send_oneway(address, offset, timeout=5)
    code, _ = await talk.client.code(Strange())
    assert code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    (labels,) = counts(talk, "unknown")
    assert labels == ("request_code_not_supported", "false", "success")
    for request in "send_message_v2", "update_consumer_offset":
        ((labels, times),) = counts(talk, request).items()
        assert (labels[1:], sum(times.counts)) == (("false", "oneway"), 1)


@in_loop(in_virtual_time, flush_disk_type=FlushDiskType.SYNC_FLUSH)
async def test_a_send_that_waits_for_the_disk_counts_when_it_is_answered(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    await asyncio.gather(talk.client.send(), talk.client.send())
    ((labels, times),) = counts(talk, "send_message_v2").items()
    assert labels == ("success", "false", "success")
    assert sum(times.counts) == 2


@in_loop(with_replicas)
async def test_a_send_without_an_answering_slave_counts_under_its_code(
    replicas: Replicas, /
) -> None:
    master = await replicas.master(**SYNC, slave_timeout=500)
    await replicas.slave()
    await until_joined(master)
    client = replicas.client_of(MASTER)
    await client.create()
    await client.send()
    replicas.kill(SLAVE)
    answer = await client.ask(SendMessageV2(topic="T", queue_id=0), b"x")
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    found = series(master, RPC_LATENCY)
    late = [one for labels, one in found.items() if labels[2] == "flush_slave_timeout"]
    assert [distribution(one).counts for one in late] == [(*[0] * 6, 1, 0, 0, 0)]


@in_loop(in_virtual_time)
async def test_every_thread_pool_of_apache_has_a_watermark(
    talk: Talk, simulation: Simulation, /
) -> None:
    found = series(talk.broker, WATERMARK)
    assert found == {(name,): 0 for name in ("send", *PROCESSORS_WITHOUT_QUEUE)}
    assert len(found) == 12
