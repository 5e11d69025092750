"""Whatever a broker keeps for a connection goes with it, and counts as its memory meanwhile."""

import asyncio
import gc
import weakref

import pytest
from tests.loops import in_loop
from tests.simulation.world.network import SimulatedTransport
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.popping import pop_request
from tests.unit.broker.talking import SERVER, Talk, in_virtual_time, pull
from tests.unit.remoting.serving import frame

from turbopump.broker.held_pulls import PULL_SIZE
from turbopump.broker.pop.group_queue import TopicGroup
from turbopump.broker.pop.held_pops import POP_SIZE
from turbopump.message.codec import decode_entries
from turbopump.protocol.request import Request
from turbopump.protocol.requests.pop import Notification
from turbopump.remoting.connection_memory import ConnectionMemory

COUNT = 200
MEMORY_MAX = 1 << 20
POPS = {"pop_polling_size": 10_000}


def waiting(kind: str, now: int, offset: int = 0) -> Request[object]:
    if kind == "pull":
        return pull(offset, suspend_ms=100_000)
    if kind == "pop":
        return pop_request(now, poll_ms=100_000, invisible_ms=60_000)
    return Notification(consumer_group="g", topic="T", queue_id=0, poll_time=100_000, born_time=now)


def held_memory(talk: Talk) -> int:
    assert talk.broker.parts.listening.server is not None
    return talk.broker.parts.listening.server.memory.total


def held(talk: Talk) -> int:
    pops = talk.broker.parts.delivering.pop.held
    return len(talk.broker.parts.delivering.held_pulls) + sum(
        pops.count_waiting(TopicGroup("T", "g"), number) for number in (-1, 0)
    )


@pytest.mark.parametrize(
    ("kind", "size"), [("pull", PULL_SIZE), ("pop", POP_SIZE), ("notification", POP_SIZE)]
)
@in_loop(in_virtual_time, **POPS)
async def test_what_waits_for_a_message_is_counted_and_goes_with_its_connection(
    talk: Talk, simulation: Simulation, /, kind: str, size: int
) -> None:
    await talk.client.create()
    await talk.client.join("a", "g")
    server = talk.broker.parts.listening.server
    assert server is not None
    known = set(server.connections)
    transport, _ = await simulation.loop.create_connection(asyncio.Protocol, SERVER, 10911)
    request = waiting(kind, simulation.clock(SERVER).now_ms())
    transport.write(b"".join(frame(request, number) for number in range(COUNT)))
    await asyncio.sleep(1)
    assert (held(talk), held_memory(talk)) == (COUNT, COUNT * size)
    (connection,) = (weakref.ref(one) for one in server.connections if one not in known)
    transport.close()
    await asyncio.sleep(1)
    assert (held(talk), held_memory(talk)) == (0, 0)
    gc.collect()
    assert [type(one) for one in gc.get_referrers(connection())] == [SimulatedTransport]


@pytest.mark.parametrize("kind", ["pull", "pop", "notification"])
@in_loop(in_virtual_time, **POPS)
async def test_who_holds_more_than_all_may_is_closed_and_a_modest_consumer_is_served(
    talk: Talk, simulation: Simulation, /, kind: str
) -> None:
    assert talk.broker.parts.listening.server is not None
    talk.broker.parts.listening.server.memory = ConnectionMemory(MEMORY_MAX)
    await talk.client.create()
    await talk.client.join("a", "g")
    modest = asyncio.ensure_future(talk.client.ask(pull(suspend_ms=100_000), timeout=100))
    await asyncio.sleep(1)
    greedy = list[asyncio.Transport]()
    for _ in range(5):
        transport, _ = await simulation.loop.create_connection(asyncio.Protocol, SERVER, 10911)
        request = waiting(kind, simulation.clock(SERVER).now_ms())
        transport.write(b"".join(frame(request, number) for number in range(400)))
        await asyncio.sleep(1)
        assert held_memory(talk) <= MEMORY_MAX
        greedy.append(transport)
    assert any(transport.is_closing() for transport in greedy)
    assert not modest.done()
    await talk.client.send(b"there")
    answer = await modest
    assert [message.body for message in decode_entries(answer.body)] == [b"there"]
