"""What tests use: a broker in a moment (`running_broker`, the fixture `rocketmq`), and simulations
that replay from a seed.

The public names are imported on first use: the pytest plugin lives here and must cost nothing until
it is used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbopump.testing.broker_in_loop import BrokerThread, RunningBroker, running_broker
    from turbopump.testing.deliveries import delivery_of
    from turbopump.testing.ledger import Ledger, Queue, Rule, Violation
    from turbopump.testing.simulated_disk import SimulatedDisk
    from turbopump.testing.simulated_loop import (
        DeadlockError,
        ForbiddenInSimulationError,
        LivelockError,
        SimulatedLoop,
    )
    from turbopump.testing.simulated_mount import PowerCut
    from turbopump.testing.simulated_network import SimulatedNetwork
    from turbopump.testing.simulated_pipe import Link
    from turbopump.testing.simulated_process import ProcessKilled, SimulatedProcess
    from turbopump.testing.simulation import SimulatedClock, Simulation, simulate

__all__ = [
    "BrokerThread",
    "DeadlockError",
    "ForbiddenInSimulationError",
    "Ledger",
    "Link",
    "LivelockError",
    "PowerCut",
    "ProcessKilled",
    "Queue",
    "Rule",
    "RunningBroker",
    "SimulatedClock",
    "SimulatedDisk",
    "SimulatedLoop",
    "SimulatedNetwork",
    "SimulatedProcess",
    "Simulation",
    "Violation",
    "delivery_of",
    "running_broker",
    "simulate",
]

_HOME = {
    name: module
    for module, names in {
        "broker_in_loop": "BrokerThread RunningBroker running_broker",
        "deliveries": "delivery_of",
        "ledger": "Ledger Queue Rule Violation",
        "simulated_disk": "SimulatedDisk",
        "simulated_loop": ("DeadlockError ForbiddenInSimulationError LivelockError SimulatedLoop"),
        "simulated_mount": "PowerCut",
        "simulated_network": "SimulatedNetwork",
        "simulated_pipe": "Link",
        "simulated_process": "ProcessKilled SimulatedProcess",
        "simulation": "SimulatedClock Simulation simulate",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'turbopump.testing' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"turbopump.testing.{_HOME[name]}"), name)
