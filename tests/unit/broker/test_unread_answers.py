"""What waits for a consumer that does not read its answers is not made, and comes when it reads."""

import asyncio

from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.popping import pop_request
from tests.unit.broker.talking import SERVER, Talk, in_virtual_time, pull
from tests.unit.remoting.serving import frame

from turbopump.message.codec import decode_entries
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command, decode_command
from turbopump.protocol.frame import FrameReader
from turbopump.remoting.wire import WAITING_MAX, WRITE_SIZE

SIZE = 1_000_000
LOGS = {"mapped_file_size_commit_log": 16 << 20, "max_message_size": 2 * SIZE}


class StubbornConsumer(asyncio.Protocol):
    """Reads when the test says so."""

    def __init__(self) -> None:
        self.frames = FrameReader()
        self.answers: list[Command] = []

    def data_received(self, data: bytes) -> None:
        self.answers += [decode_command(one) for one in self.frames.feed(data)]


async def stubborn(simulation: Simulation) -> tuple[asyncio.Transport, StubbornConsumer]:
    transport, consumer = await simulation.loop.create_connection(StubbornConsumer, SERVER, 10911)
    transport.pause_reading()
    assert isinstance(consumer, StubbornConsumer)
    return transport, consumer


def held_memory(talk: Talk) -> int:
    assert talk.broker.parts.listening.server is not None
    return talk.broker.parts.listening.server.memory.total


@in_loop(in_virtual_time, **LOGS)
async def test_pulls_that_wake_while_their_peer_does_not_read_stay_due_and_are_answered_in_order(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    transport, consumer = await stubborn(simulation)
    transport.write(b"".join(frame(pull(0, suspend_ms=30_000), number) for number in range(40)))
    await asyncio.sleep(1)
    assert len(talk.broker.parts.delivering.held_pulls) == 40
    await talk.client.send(bytes(SIZE))
    await asyncio.sleep(60)
    assert len(talk.broker.parts.delivering.held_pulls) == 0, "they are due, their time is over"
    assert WAITING_MAX - SIZE < held_memory(talk) <= WAITING_MAX + WRITE_SIZE + SIZE
    transport.resume_reading()
    await asyncio.sleep(5)
    assert [answer.opaque for answer in consumer.answers] == list(range(40))
    assert {answer.code for answer in consumer.answers} == {ResponseCode.SUCCESS}
    assert held_memory(talk) == 0


@in_loop(in_virtual_time, **LOGS)
async def test_what_a_consumer_that_does_not_read_would_pop_is_for_others(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    await talk.client.send(bytes(SIZE))
    now = simulation.clock(SERVER).now_ms()
    transport, consumer = await stubborn(simulation)
    asked = pop_request(now, poll_ms=30_000, invisible_ms=60_000)
    transport.write(frame(asked, 0) + frame(asked, 1))
    await asyncio.sleep(1)
    transport.write(b"".join(frame(pull(0), number) for number in range(2, 40)))
    await asyncio.sleep(1)
    assert held_memory(talk) > WAITING_MAX - SIZE
    other = asyncio.ensure_future(talk.client.ask(asked, timeout=60))
    await asyncio.sleep(1)
    assert not other.done()
    await talk.client.send(b"second")
    answer = await other
    assert [message.body for message in decode_entries(answer.body)] == [b"second"]
    transport.resume_reading()
    await asyncio.sleep(40)
    answers = {answer.opaque: answer for answer in consumer.answers}
    assert len(list(decode_entries(answers[0].body))) == 1
    assert answers[1].code == ResponseCode.POLLING_TIMEOUT
    assert sorted(answers) == list(range(40))
