"""A broker's page says whether the broker is ready."""

from tests.loops import in_loop
from tests.unit.broker.replicas import NAMESRV, Replicas, eventually, with_replicas
from tests.unit.metrics.reading import series_of

from turbopump.broker.metrics.broker_state import READY, add_readiness
from turbopump.metrics.family import Metrics


@in_loop(with_replicas)
async def test_a_broker_is_ready_while_a_name_server_has_registered_it(
    replicas: Replicas, /
) -> None:
    master = await replicas.master()
    metrics = Metrics()
    add_readiness(metrics, master.readiness.reasons)
    assert series_of(metrics, READY) == {(): 1}
    replicas.kill(NAMESRV)
    await eventually(lambda: series_of(metrics, READY) == {(): 0})
