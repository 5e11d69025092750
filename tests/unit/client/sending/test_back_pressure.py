"""Back-pressure and automatic batches, in virtual time."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import refusal, scripted_cluster

from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.sending.back_pressure import BackPressure, InFlightBound
from turbopump.client.sending.send_result import SendResult, SendStatus
from turbopump.errors import ConfigError, MessageError, SendError
from turbopump.message.message import Message
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests.send import SendBatchMessage, SendMessageV2


@pytest.mark.parametrize("bound", [BackPressure(messages=3), BackPressure(size=3 * 100)])
@in_loop(simulated)
async def test_who_finds_no_room_waits_for_it(
    simulation: Simulation, /, bound: BackPressure
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, back_pressure=bound) as producer,
    ):
        await producer.send("orders", b"x" * 100)
        most = 0

        async def send() -> SendResult:
            nonlocal most
            result = await producer.send("orders", b"x" * 100)
            most = max(most, producer._limiter._bound.messages if producer._limiter._bound else 0)
            return result

        results = await asyncio.gather(*(send() for _ in range(50)))
        assert [result.status for result in results] == [SendStatus.OK] * 50
        assert most == 3


@in_loop(simulated)
async def test_the_wait_ends_with_the_deadline_and_says_what_to_do(
    simulation: Simulation, /
) -> None:
    bound = BackPressure(messages=1)
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, back_pressure=bound) as producer,
    ):
        await producer.send("orders", b"x")
        cluster.broker.script[RequestCode.SEND_MESSAGE_V2].append(None)
        stuck = asyncio.create_task(producer.send("orders", b"x"))
        await asyncio.sleep(0)
        before = simulation.loop.time()
        with pytest.raises(SendError, match=r"no room among the 1 messages .* send less at once"):
            await producer.send("orders", b"x", timeout=0.5)
        assert 0.49 < simulation.loop.time() - before < 0.6
        waits = asyncio.create_task(producer.send("orders", b"x", timeout=10))
        with pytest.raises(SendError, match="no answer"):
            await stuck
        assert (await waits).status is SendStatus.OK


@in_loop(simulated)
async def test_a_send_that_is_only_started_waits_for_room_and_its_future_has_the_result(
    simulation: Simulation, /
) -> None:
    bound = BackPressure(messages=2)
    async with scripted_cluster(simulation) as cluster:
        producer = producer_of(cluster, back_pressure=bound, retries=0)
        await producer.start()
        await producer.send("orders", b"x")
        cluster.broker.script[RequestCode.SEND_MESSAGE_V2].extend(
            [None, refusal(ResponseCode.MESSAGE_ILLEGAL, "odd")]
        )
        silent = await producer.start_send(Message("orders", b"x"), timeout=2)
        refused = await producer.start_send(Message("orders", b"x"), sharding_key="k")
        before = simulation.loop.time()
        third = await producer.start_send(Message("orders", b"x"))  # when the refusal has come
        assert 0 < simulation.loop.time() - before < 0.1
        with pytest.raises(SendError, match="odd"):
            await refused
        with pytest.raises(MessageError):
            await producer.start_send(Message("orders", b""))
        assert (await third).status is SendStatus.OK
        with pytest.raises(SendError, match="no answer"):
            await silent
        last = await producer.start_send(Message("orders", b"x"))
        await producer.close()
        assert last.result().status is SendStatus.OK


async def enter(bound: InFlightBound, order: list[str], name: str, size: int) -> None:
    await bound.wait_for_room(size, 60)
    order.append(name)


@in_loop(simulated)
async def test_the_line_keeps_its_order_and_forgets_who_gives_up(simulation: Simulation, /) -> None:
    bound = InFlightBound(BackPressure(messages=2, size=100))
    await bound.wait_for_room(60, 1)
    order: list[str] = []

    large = asyncio.create_task(enter(bound, order, "large", 80))
    gone = asyncio.create_task(enter(bound, order, "gone", 1))
    small = asyncio.create_task(enter(bound, order, "small", 10))
    await asyncio.sleep(0.1)
    assert order == []  # the small one fits, but it is not its turn
    gone.cancel()
    await asyncio.sleep(0.1)
    bound.free_room(60)
    await asyncio.gather(large, small)
    assert order == ["large", "small"]
    assert (bound.messages, bound.size) == (2, 90)
    large_alone = InFlightBound(BackPressure(size=10))
    await large_alone.wait_for_room(1000, 1)


@in_loop(simulated)
async def test_messages_of_one_turn_travel_as_one_and_each_has_its_own_result(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, auto_batch=AutoBatch()) as producer,
    ):
        cluster.broker.script[RequestCode.SEND_BATCH_MESSAGE].append(
            stored := refusal(ResponseCode.SUCCESS)
        )
        stored.ext = {
            "msgId": ",".join(f"B{i}" for i in range(20)),
            "queueId": "2",
            "queueOffset": "100",
        }
        results = await asyncio.gather(*(producer.send("orders", f"{i}") for i in range(20)))
        assert len(cluster.broker.requests(SendBatchMessage)) == 1
        assert cluster.broker.requests(SendMessageV2) == []
        assert len({result.msg_id for result in results}) == 20
        assert [result.queue_offset for result in results] == list(range(100, 120))
        assert [result.offset_msg_id for result in results] == [f"B{i}" for i in range(20)]
        before = simulation.loop.time()
        await producer.send("orders", b"alone")
        # nobody waits for company that is not on its way
        assert simulation.loop.time() - before < 0.005
        assert len(cluster.broker.requests(SendMessageV2)) == 1  # one message needs no batch


@in_loop(simulated)
async def test_messages_are_held_while_a_batch_is_under_way_but_no_longer_than_allowed(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, auto_batch=AutoBatch()) as producer,
    ):
        await producer.send("orders", b"x")
        cluster.broker.script[RequestCode.SEND_MESSAGE_V2].append(None)  # it never comes back
        stuck = asyncio.create_task(producer.send("orders", b"x"))
        await asyncio.sleep(0.1)
        before = simulation.loop.time()
        sends = []
        for _ in range(5):
            sends.append(asyncio.create_task(producer.send("orders", b"y")))
            await asyncio.sleep(0.001)
        await asyncio.gather(*sends)
        assert 0.01 <= simulation.loop.time() - before < 0.02
        assert len(cluster.broker.requests(SendBatchMessage)) == 1
        with pytest.raises(SendError):
            await stuck


async def send_ten(producer: Any) -> None:
    for _ in range(10):
        await producer.send("orders", b"x")


@in_loop(simulated)
async def test_64_senders_who_await_their_results_fill_every_batch(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, auto_batch=AutoBatch()) as producer,
    ):
        await producer.send("orders", b"x")

        before = simulation.loop.time()
        await asyncio.gather(*(send_ten(producer) for _ in range(64)))
        assert len(cluster.broker.requests(SendBatchMessage)) == 10
        assert simulation.loop.time() - before < 0.1


@in_loop(simulated)
async def test_a_full_batch_goes_at_once_and_what_differs_goes_apart(
    simulation: Simulation, /
) -> None:
    settings = AutoBatch(hold=5.0, size=1700)
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, auto_batch=settings) as producer,
    ):
        before = simulation.loop.time()
        await asyncio.gather(*(producer.send("orders", b"x" * 100, tags="a") for _ in range(10)))
        assert simulation.loop.time() - before < 0.1
        await asyncio.gather(
            *(producer.send("orders", b"x" * 500, tags=tag) for tag in "aabb"),
            *(
                producer.send(Message("orders", b"x" * 500, tags="a", wait_store_ok=False))
                for _ in range(2)
            ),
        )
        assert len(cluster.broker.requests(SendBatchMessage)) == 4
        assert simulation.loop.time() - before < 0.2
        delayed = Message("orders", b"x", delay_level=1)
        await asyncio.gather(
            producer.send(delayed),
            producer.send("orders", b"x" * 2000),
            producer.send("orders", b"x", sharding_key=1),
        )
        # not what may not be in a batch, or is one by itself
        assert len(cluster.broker.requests(SendMessageV2)) == 3
        assert simulation.loop.time() - before < 0.3


@in_loop(simulated)
async def test_the_error_of_a_batch_is_everyones_and_a_close_sends_what_is_held(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        producer = producer_of(cluster, auto_batch=AutoBatch(hold=20.0), retries=0)
        await producer.start()
        cluster.broker.script[RequestCode.SEND_BATCH_MESSAGE].append(
            refusal(ResponseCode.MESSAGE_ILLEGAL, "odd")
        )
        sends = [asyncio.create_task(producer.send("orders", b"x", timeout=30)) for _ in range(3)]
        await asyncio.sleep(1)
        for send in sends:
            with pytest.raises(SendError, match="odd"):
                await send
        sends = [asyncio.create_task(producer.send("orders", b"x", timeout=30)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(MessageError):  # at once, and it spoils nothing
            await producer.send("orders", b"x", properties={"a": "\x01"}, timeout=0.1)
        await producer.close()
        assert [send.result().status for send in sends] == [SendStatus.OK] * 3


@pytest.mark.parametrize("bound", [BackPressure(messages=10), BackPressure(size=10 * 100)])
@in_loop(simulated)
async def test_in_automatic_batches_too_each_message_waits_for_room_of_its_own(
    simulation: Simulation, /, bound: BackPressure
) -> None:
    settings = {"auto_batch": AutoBatch(), "back_pressure": bound}
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, **settings) as producer,
    ):
        await producer.send("orders", b"w")
        started: list[asyncio.Future[SendResult]] = []
        most = 0
        for _ in range(200):
            started.append(await producer.start_send(Message("orders", b"x" * 100)))
            most = max(most, sum(not future.done() for future in started))
        assert most == 10
        await asyncio.gather(*started, *(producer.send("orders", b"x" * 100) for _ in range(50)))
        for code in (RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2):
            cluster.broker.script[code].extend([None, None])
        stuck = [await producer.start_send(Message("orders", b"x" * 100)) for _ in range(10)]
        before = simulation.loop.time()
        with pytest.raises(
            SendError,
            match=r"no room among the 10 messages .* send less at "
            r"once",
        ):
            await producer.start_send(Message("orders", b"x" * 100), timeout=0.5)
        assert 0.49 < simulation.loop.time() - before < 0.6
        with pytest.raises(MessageError):
            await producer.send("orders", b"x", properties={"a": "\x01"})
        assert all(
            isinstance(error, SendError)
            for error in await asyncio.gather(*stuck, return_exceptions=True)
        )
        cluster.broker.script.clear()
        # all the room is free again
        assert (await producer.send("orders", b"x" * 1000)).status is SendStatus.OK


@pytest.mark.parametrize("queues", [1, 4])
@in_loop(simulated)
async def test_a_flood_of_started_sends_lets_the_loop_write_and_others_have_their_turn(
    simulation: Simulation, /, queues: int
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, auto_batch=AutoBatch()) as producer,
    ):
        await producer.send("orders", b"w")
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        targets = (await producer.publish_queues("orders"))[:queues]
        started = [
            await producer.start_send(Message("orders", b"x" * 100), queue=targets[i % queues])
            for i in range(2000)
        ]
        task.cancel()
        assert turns >= 2000 // 64 - 1
        sender = producer._sender
        assert sender is not None
        assert sender.under_way.count > 1
        results = await asyncio.gather(*started)
        assert {result.status for result in results} == {SendStatus.OK}


@in_loop(simulated)
async def test_who_has_less_time_than_his_neighbours_in_a_batch_fails_alone(
    simulation: Simulation, /
) -> None:
    settings = {"auto_batch": AutoBatch(), "attempt_timeout": 1.0}
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, **settings) as producer,
    ):
        await producer.send("orders", b"w")
        # the patient one has time for another attempt
        cluster.broker.script[RequestCode.SEND_BATCH_MESSAGE].append(None)
        before = simulation.loop.time()
        ends: dict[str, float] = {}

        async def send(name: str, timeout: float) -> SendResult:
            try:
                return await producer.send("orders", name, timeout=timeout)
            finally:
                ends[name] = simulation.loop.time() - before

        hasty, hastier, patient, late = await asyncio.gather(
            send("hasty", 0.2),
            send("hastier", 0.1),
            send("patient", 10),
            send("late", -1),
            return_exceptions=True,
        )
        assert isinstance(hasty, SendError)
        assert isinstance(hastier, SendError)
        assert 0.1 <= ends["hastier"] < 0.11
        assert 0.2 <= ends["hasty"] < 0.21
        assert "no answer within its timeout" in str(hasty)
        assert "may be stored nevertheless" in str(hasty)
        assert isinstance(patient, SendResult)
        assert patient.status is SendStatus.OK
        assert 1 < ends["patient"] < 1.2
        assert isinstance(late, SendError)
        assert "leaves no time" in str(late)
        # one each for those who failed alone; the late one was not begun
        assert producer.statistics.given_up == 2
        slow = asyncio.gather(
            send("hasty", 1e-6), *(send("patient", 10) for _ in range(3)), return_exceptions=True
        )
        hasty, *others = await slow
        assert isinstance(hasty, SendError)
        assert [other.status for other in others if isinstance(other, SendResult)] == [
            SendStatus.OK
        ] * 3
        assert producer.statistics.given_up == 3


@in_loop(simulated)
async def test_about_the_same_time_is_one_deadline_and_its_error_lists_what_was_tried(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, auto_batch=AutoBatch()) as producer,
    ):
        await producer.send("orders", b"w")
        cluster.broker.script[RequestCode.SEND_BATCH_MESSAGE].append(None)
        before = simulation.loop.time()
        sends = (producer.send("orders", b"x", timeout=3 + i / 1000) for i in range(5))
        errors = await asyncio.gather(*sends, return_exceptions=True)
        assert simulation.loop.time() - before <= 3.001
        assert all("1 attempt" in str(error) for error in errors)


@in_loop(simulated)
async def test_what_runs_out_of_time_while_it_is_held_is_not_sent(
    simulation: Simulation, /
) -> None:
    settings = AutoBatch(hold=5.0)
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, auto_batch=settings) as producer,
    ):
        await producer.send("orders", b"w")
        cluster.broker.script[RequestCode.SEND_MESSAGE_V2].append(None)
        stuck = asyncio.create_task(producer.send("orders", b"stuck", timeout=4))
        await asyncio.sleep(0.1)
        with pytest.raises(
            SendError,
            match=r"while it was held for a batch\. Nothing was "
            r"stored",
        ):
            await producer.send("orders", b"alone", timeout=0.2)
        sent = len(cluster.broker.received)
        patient = [
            asyncio.create_task(producer.send("orders", b"patient", timeout=20)) for _ in range(2)
        ]
        hasty = [
            asyncio.create_task(producer.send("orders", b"hasty", timeout=t)) for t in (1.0, 0.5)
        ]
        await asyncio.sleep(1.5)
        assert len(cluster.broker.received) == sent
        for send in hasty:
            with pytest.raises(SendError, match="Nothing was stored"):
                await send
        with pytest.raises(SendError):
            await stuck
        assert [(await send).status for send in patient] == [SendStatus.OK] * 2
        ((_, body),) = cluster.broker.received[sent:]
        assert body.count(b"patient") == 2
        assert producer.statistics.given_up == 4
        assert b"hasty" not in body
        accumulator = producer._accumulator
        assert accumulator is not None
        assert accumulator._held == 0


@pytest.mark.parametrize(
    ("size_max", "settings", "size"),
    [
        (20 * 1024, AutoBatch(), 1000),  # far below a batch
        (32 * 1024, AutoBatch(size=32 * 1024), 1000),  # as large as a batch
        (33 * 1024, AutoBatch(size=33 * 1024 - 100), 700),  # the last one would go beyond
        (1000, AutoBatch(), 1000),  # each fills it alone, and its entry in a batch would not fit
        (4 * 1024 * 1024, AutoBatch(size=2 * 1024 * 1024), 1024 * 1024 + 500_000),
    ],
)
@in_loop(simulated)
async def test_no_batch_grows_beyond_what_one_request_may_have(
    simulation: Simulation, /, size_max: int, settings: AutoBatch, size: int
) -> None:
    kinds = {
        "auto_batch": settings,
        "body_size_max": size_max,
        "compress_from": None,
        "send_timeout": 600.0,
    }
    async with scripted_cluster(simulation) as cluster, producer_of(cluster, **kinds) as producer:
        await producer.send("orders", b"w")
        count = 60 if size < 5000 else 4
        results = await asyncio.gather(
            *(producer.send("orders", b"x" * size) for _ in range(count))
        )
        assert {result.status for result in results} == {SendStatus.OK}
        assert len({result.msg_id for result in results}) == count
        assert max(len(body) for _, body in cluster.broker.received) <= size_max
        if size_max > 2 * size + 200:
            assert len(cluster.broker.requests(SendBatchMessage)) <= count // 2


@pytest.mark.parametrize(
    "make",
    [
        partial(BackPressure, messages=0),
        partial(BackPressure, size=0),
        partial(AutoBatch, hold=0),
        partial(AutoBatch, hold=31),
        partial(AutoBatch, size=3 * 1024 * 1024),
        partial(AutoBatch, total_size=0),
    ],
)
def test_unusable_bounds_are_refused(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError):
        make()


@in_loop(simulated)
async def test_an_own_id_with_a_comma_takes_nobody_his_result(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, auto_batch=AutoBatch()) as producer,
    ):
        cluster.broker.script[RequestCode.SEND_BATCH_MESSAGE].append(
            stored := refusal(ResponseCode.SUCCESS)
        )
        stored.ext = {"msgId": "B0,B1,B2", "queueId": "2", "queueOffset": "100"}
        own = Message("orders", b"own", properties={"UNIQ_KEY": "order,17"})
        before, result, after = await asyncio.gather(
            producer.send("orders", b"a"), producer.send(own), producer.send("orders", b"b")
        )
        assert len(cluster.broker.requests(SendBatchMessage)) == 1
        assert (result.msg_id, result.msg_ids) == ("order,17", ("order,17",))
        assert [one.offset_msg_id for one in (before, result, after)] == ["B0", "B1", "B2"]
        assert [one.queue_offset for one in (before, result, after)] == [100, 101, 102]
        assert "," not in before.msg_id + after.msg_id
        whole = await producer.send_batch(
            [own, Message("orders", b"c", properties={"UNIQ_KEY": "other"})]
        )
        assert (whole.msg_id, whole.msg_ids) == ("order,17,other", ("order,17", "other"))
        assert (await producer.send(own, timeout=1)).msg_ids == ("order,17",)


@in_loop(simulated)
async def test_what_a_broker_may_refuse_in_a_batch_goes_alone(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, auto_batch=AutoBatch()) as producer,
    ):
        cluster.name_server.route("%RETRY%billing", cluster.broker)
        await asyncio.gather(*(producer.send("%RETRY%billing", b"again") for _ in range(3)))
        assert cluster.broker.requests(SendBatchMessage) == []
        assert len(cluster.broker.requests(SendMessageV2)) == 3
        large = Message("orders", b"large", properties={"a": "b" * 17_000})
        results = await asyncio.gather(
            *(producer.send(message) for message in (Message("orders", b"x"), large, large))
        )
        assert cluster.broker.requests(SendBatchMessage) == []
        assert len(cluster.broker.requests(SendMessageV2)) == 6
        assert [result.status for result in results] == [SendStatus.OK] * 3
