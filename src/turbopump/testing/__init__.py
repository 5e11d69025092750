"""A running broker for tests: `running_broker`, `BrokerThread` and the pytest fixture `rocketmq`.
`delivery_of` returns the argument of a consumer's handler.

The public names are imported on first use, because the pytest plugin is loaded in every test run
and must cost nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbopump.testing.broker_in_loop import BrokerThread, RunningBroker, running_broker
    from turbopump.testing.deliveries import delivery_of

__all__ = ["BrokerThread", "RunningBroker", "delivery_of", "running_broker"]


def __getattr__(name: str) -> object:
    if name == "delivery_of":
        from turbopump.testing import deliveries

        return deliveries.delivery_of
    if name not in __all__:
        raise AttributeError(f"module 'turbopump.testing' has no attribute {name!r}")
    from turbopump.config.system import require_unix

    require_unix("a broker for tests")
    from turbopump.testing import broker_in_loop

    return getattr(broker_in_loop, name)
