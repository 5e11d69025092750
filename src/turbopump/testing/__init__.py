"""What tests use: a broker in a moment (`running_broker`, the fixture `rocketmq`), and simulations
that replay from a seed.

The public names are imported on first use: the pytest plugin lives here and must cost nothing until
it is used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbopump.testing.broker_in_loop import BrokerThread, RunningBroker, running_broker
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
    "running_broker",
    "simulate",
]

_HOME = {
    "BrokerThread": "broker_in_loop",
    "DeadlockError": "simulated_loop",
    "ForbiddenInSimulationError": "simulated_loop",
    "Ledger": "ledger",
    "Link": "simulated_pipe",
    "LivelockError": "simulated_loop",
    "PowerCut": "simulated_mount",
    "ProcessKilled": "simulated_process",
    "Queue": "ledger",
    "Rule": "ledger",
    "RunningBroker": "broker_in_loop",
    "SimulatedClock": "simulation",
    "SimulatedDisk": "simulated_disk",
    "SimulatedLoop": "simulated_loop",
    "SimulatedNetwork": "simulated_network",
    "SimulatedProcess": "simulated_process",
    "Simulation": "simulation",
    "Violation": "ledger",
    "running_broker": "broker_in_loop",
    "simulate": "simulation",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'turbopump.testing' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"turbopump.testing.{_HOME[name]}"), name)
