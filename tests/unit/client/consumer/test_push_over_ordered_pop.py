"""The push consumer where a broker has it pop in order, against a scripted cluster, in virtual
time. (With brokers that fail: ``tests/simulation/test_ordered_pop.py``.)"""

from __future__ import annotations

import asyncio

from tests.loops import in_loop, simulated
from tests.unit.client.consumer.popping_consumers import PULL, Handled, consumer_of, popping
from tests.unit.client.scripted_cluster import until

from turbopump import Retry
from turbopump.client.consumer.delivery import Delivery
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.requests.pop import ChangeInvisibleTime, PopMessage
from turbopump.protocol.requests.pull import PullMessage
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.testing.simulation import Simulation


@in_loop(simulated)
async def test_of_each_queue_one_message_at_a_time_is_handled_and_the_queues_side_by_side(
    simulation: Simulation, /
) -> None:
    bodies: list[bytes] = []
    running: set[int] = set()
    together: set[int] = set()

    async def handle(message: Delivery) -> None:
        assert message.queue_id not in running
        running.add(message.queue_id)
        together.add(len(running))
        await asyncio.sleep(0.5)
        bodies.append(message.body)
        running.remove(message.queue_id)

    async with popping(simulation) as (cluster, pops):
        for i in range(40):
            pops.store("orders", i % 4, b"%d" % i)
        async with consumer_of(cluster, handler=handle, ordered=True):
            await until(lambda: len(pops.acked) == 40)
        for queue in range(4):
            of_queue = [int(body) for body in bodies if int(body) % 4 == queue]
            assert of_queue == list(range(queue, 40, 4))
        assert max(together) == 4
        assert pops.invisible == []
        asked = cluster.broker.requests(PopMessage)
        assert {one.order for one in asked} == {True}
        assert len({one.attempt_id for one in asked}) == len(asked), (
            "each pop that got an answer is another attempt"
        )
        assert cluster.broker.requests(PullMessage) == []


@in_loop(simulated)
async def test_a_message_that_fails_is_handled_again_in_place_and_what_follows_waits(
    simulation: Simulation, /
) -> None:
    handled = Handled(
        lambda message: Retry() if message.body == b"a" and message.attempt <= 100 else None
    )
    async with popping(simulation) as (cluster, pops):
        for body in (b"a", b"b", b"c"):
            pops.store("orders", 0, body)
        async with consumer_of(cluster, handler=handled, ordered=True, suspend_time=2):
            await until(lambda: len(pops.acked) == 3)
        assert handled.bodies == [*[b"a"] * 101, b"b", b"c"]
        assert handled.attempts == [*range(1, 102), 1, 1]
        assert {
            round(later - earlier, 1)
            for earlier, later in zip(handled.times[:100], handled.times[1:101], strict=True)
        } == {2.0}
        changed = [place for place, _ in pops.changed]
        assert set(changed) == {("orders", 0, 2)}, (
            "more time is asked for the last message, which blocks the queue"
        )
        assert 4 <= len(changed) <= 8


@in_loop(simulated)
async def test_a_handler_that_goes_on_after_asking_again_has_no_say_in_the_next_delivery(
    simulation: Simulation, /
) -> None:
    go_on = asyncio.Event()
    attempts: list[int] = []

    async def handle(message: Delivery) -> Retry | None:
        attempts.append(message.attempt)
        if len(attempts) == 1:
            message.retry()
            await go_on.wait()
            message.done()
        elif len(attempts) == 2:
            go_on.set()
            await asyncio.sleep(5)
            return Retry()
        return None

    async with popping(simulation) as (cluster, pops):
        pops.store("orders", 0, b"a")
        async with consumer_of(cluster, handler=handle, ordered=True):
            await until(lambda: len(pops.acked) == 1)
        assert attempts == [1, 2, 3], "it was not done before the third"


@in_loop(simulated)
async def test_after_its_retries_or_on_request_a_message_becomes_a_dead_letter(
    simulation: Simulation, /
) -> None:
    fates = {b"poison": Retry(level=-1), b"hopeless": Retry()}
    handled = Handled(lambda message: fates.get(message.body))
    async with popping(simulation) as (cluster, pops):
        cluster.name_server.route("%RETRY%readers", cluster.broker, queues=1)
        async with consumer_of(cluster, handler=handled, ordered=True, max_reconsume_times=2):
            for body in (b"poison", b"hopeless", b"good"):
                pops.store("orders", 0, body)
            await until(lambda: len(pops.acked) == 3)
        assert handled.bodies == [b"poison", *[b"hopeless"] * 3, b"good"]
        dead = [request for request, _ in cluster.broker.received if type(request) is SendMessageV2]
        assert [(one.topic, one.max_reconsume_times) for one in dead] == [
            ("%RETRY%readers", 0),
            ("%RETRY%readers", 2),
        ]


@in_loop(simulated)
async def test_a_long_line_of_slow_messages_stays_with_whoever_began_it(
    simulation: Simulation, /
) -> None:
    handled = Handled(takes=4)
    async with popping(simulation) as (cluster, pops):
        for i in range(30):
            pops.store("orders", 0, b"%d" % i)
        async with consumer_of(cluster, handler=handled, ordered=True, pop_invisible_time=15):
            await until(lambda: len(pops.acked) == 30)
        assert handled.bodies == [b"%d" % i for i in range(30)]


@in_loop(simulated)
async def test_a_hanging_handler_keeps_a_queue_for_its_invisible_time(
    simulation: Simulation, /
) -> None:
    go_on = asyncio.Event()
    hung: list[bytes] = []

    async def hang(message: Delivery) -> None:
        hung.append(message.body)
        if message.body == b"b":
            await go_on.wait()

    handled = Handled()
    async with popping(simulation) as (cluster, pops):
        for body in (b"a", b"b", b"c"):
            pops.store("orders", 0, body)
        settings = {"ordered": True, "pop_invisible_time": 15}
        async with consumer_of(cluster, handler=hang, close_timeout=0, **settings) as first:
            await until(lambda: hung == [b"a", b"b"])
            first.lifecycle.started().pops.stop()
            async with consumer_of(cluster, handler=handled, **settings):
                await until(lambda: handled.bodies == [b"b", b"c"])
                assert handled.attempts == [2, 2], "the broker counts for all that was taken"
            go_on.set()
            await asyncio.sleep(1)
        assert hung == [b"a", b"b"], "what follows is not handled by who was too late"


@in_loop(simulated)
async def test_what_a_lost_answer_brought_is_asked_for_again_at_once(
    simulation: Simulation, /
) -> None:
    handled = Handled()
    async with popping(simulation) as (cluster, pops):
        pops.lose_next_answer(simulation.network)
        for body in (b"a", b"b"):
            pops.store("orders", 0, body)
        async with consumer_of(cluster, handler=handled, ordered=True):
            begun = simulation.loop.time()
            await until(lambda: len(pops.acked) == 2)
            assert simulation.loop.time() - begun < 30, "the invisible time is 60 s"
        assert (handled.bodies, handled.attempts) == ([b"a", b"b"], [1, 1])


@in_loop(simulated)
async def test_at_close_messages_not_begun_are_given_back_and_come_to_the_next_member(
    simulation: Simulation, /
) -> None:
    handled, others = Handled(takes=2), Handled()
    async with popping(simulation) as (cluster, pops):
        for body in (b"a", b"b", b"c"):
            pops.store("orders", 0, body)
        async with consumer_of(cluster, handler=handled, ordered=True):
            await until(lambda: handled.bodies == [b"a"])
        assert pops.acked == [("orders", 0, 0)]
        assert pops.changed == [(("orders", 0, 1), 1_000), (("orders", 0, 2), 1_000)]
        async with consumer_of(cluster, handler=others, ordered=True):
            await until(lambda: others.bodies == [b"b", b"c"])


@in_loop(simulated)
async def test_async_for_gets_the_next_message_when_it_asks_for_it(
    simulation: Simulation, /
) -> None:
    async with (
        popping(simulation) as (cluster, pops),
        consumer_of(cluster, ordered=True) as consumer,
    ):
        for body in (b"a", b"b"):
            pops.store("orders", 0, body)
        stream = aiter(consumer)
        assert (await anext(stream)).body == b"a"
        waiting = asyncio.ensure_future(consumer.take(1))
        await asyncio.sleep(3)
        assert not waiting.done(), "one message of a queue at a time"
        waiting.cancel()
        assert (await anext(stream)).body == b"b"
        assert pops.acked == [("orders", 0, 0)]


@in_loop(simulated)
async def test_a_strangers_message_is_acknowledged_in_its_turn(simulation: Simulation, /) -> None:
    acked_before: list[int] = []

    async def handle(message: Delivery) -> None:
        await asyncio.sleep(1)
        acked_before.append(len(pops.acked))

    async with popping(simulation) as (cluster, pops):
        pops.store("orders", 0, b"first", "TAGS\x01Aa\x02")
        pops.store("orders", 0, b"equal hash", "TAGS\x01BB\x02")
        pops.store("orders", 0, b"second", "TAGS\x01Aa\x02")
        async with consumer_of(cluster, handler=handle, ordered=True, tags="Aa"):
            await until(lambda: len(pops.acked) == 3)
        assert acked_before == [0, 2]


@in_loop(simulated)
async def test_more_time_that_is_refused_means_that_the_line_comes_again_from_there(
    simulation: Simulation, /
) -> None:
    handled = Handled(takes=6)
    async with popping(simulation) as (cluster, pops):
        cluster.broker.script[RequestCode.CHANGE_MESSAGE_INVISIBLETIME].append(None)
        for body in (b"a", b"b", b"c", b"d"):
            pops.store("orders", 0, body)
        async with consumer_of(cluster, handler=handled, ordered=True, pop_invisible_time=15):
            await until(lambda: len(pops.acked) >= 4 and not pops.invisible)
        assert cluster.broker.requests(ChangeInvisibleTime)
        assert handled.bodies == [b"a", b"b", b"c", b"d"]
        assert handled.attempts[2:] == [2, 2]


@in_loop(simulated)
async def test_where_the_broker_says_pull_its_queues_are_locked_and_pulled_in_order(
    simulation: Simulation, /
) -> None:
    handled = Handled()
    async with popping(simulation, queues=1) as (cluster, pops):
        pops.modes["orders"] = PULL
        for body in (b"a", b"b"):
            pops.store("orders", 0, body)
        async with consumer_of(cluster, handler=handled, ordered=True):
            await until(lambda: handled.bodies == [b"a", b"b"])
        assert cluster.broker.requests(PopMessage) == []
        assert RequestCode.LOCK_BATCH_MQ in {request.code for request, _ in cluster.broker.received}
