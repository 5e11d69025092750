"""Requests that come in thousands have a share of each turn of the loop, and wait for the next."""

import asyncio

from tests.loops import in_loop
from tests.patient import ANSWER_S
from tests.unit.broker.talking import until

from turbopump.broker.background import SHARE_S, TurnShare
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.topics import DeleteTopic
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import RequestContext, Router
from turbopump.remoting.server import RemotingServer


class SlowWork:
    """A handler that takes a third of a share, by its own clock, and ``turns``: when it worked."""

    def __init__(self) -> None:
        self.time = 0.0
        self.turn = 0
        self.turns: list[int] = []
        self.share = TurnShare(lambda: self.time)

    def handle(self, request: DeleteTopic, _context: RequestContext) -> Response[None]:
        self.time += SHARE_S / 3 + 0.0001
        self.turns.append(self.turn)
        if request.topic == "broken":
            raise ValueError("a mistake")
        return refusal(ResponseCode.SYSTEM_ERROR, request.topic)

    def count_turns(self) -> None:
        self.turn += 1
        asyncio.get_running_loop().call_soon(self.count_turns)


@in_loop
async def test_a_share_of_each_turn_is_used_in_the_order_of_arrival() -> None:
    work, router = SlowWork(), Router()
    router.add(DeleteTopic, work.share.of(work.handle))
    server, client = RemotingServer(router), RemotingClient(connect_timeout=ANSWER_S)
    address = "{}:{}".format(*await server.listen("127.0.0.1", 0))
    await client.connect(address)
    asyncio.get_running_loop().call_soon(work.count_turns)
    names = [*map(str, range(10)), "broken"]
    answers = await asyncio.gather(
        *(client.exchange(address, DeleteTopic(topic=name), timeout=ANSWER_S) for name in names)
    )
    assert [answer.remark for answer in answers][:10] == names[:10]
    assert "internal error ValueError" in (answers[10].remark or "")
    assert [work.turns.count(turn) for turn in dict.fromkeys(work.turns)] == [3, 3, 3, 2]
    await client.close()
    await until(lambda: not server.connections)
    await server.close()
