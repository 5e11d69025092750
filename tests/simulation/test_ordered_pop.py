"""Ordered consumption over POP through kills, power cuts, lost connections and members that come
and go: no handler begins with a message before the one ahead of it succeeded. While the broker dies
no worse than by a clean stop, it is one handler of a queue at a time, too.
"""

from __future__ import annotations

from tests.simulation.ordered_group import BROKER, FAILURES, QUEUES, PoppingWorld, war

WHOLE_SEEDS = 2
"""So many seeds have all the failures of `make sim`, the others the sample."""


class GentlerWorld(PoppingWorld):
    """The broker's process is broken by nothing."""

    def fail_once(self, deed: float, host: str) -> None:
        if deed < 0.15:
            self.stop(BROKER)
        elif deed < 0.35:
            self.simulation.end(host, power_cut=False)
        elif deed < 0.5:
            self.stop(host)
        elif deed < 0.65:
            self.simulation.network.reset(BROKER, host)
        else:
            self.cut_off(host)


def test_through_every_failure_no_handler_begins_before_the_message_ahead_succeeded(
    seed: int,
) -> None:
    world = war(PoppingWorld, seed, FAILURES if seed <= WHOLE_SEEDS else 8)
    assert [wrong for wrong in world.watch.wrong if "succeeded" in wrong] == []
    assert world.missing == 0
    assert world.handled > 100
    assert len(world.watch.succeeded) == QUEUES


def test_while_the_broker_forgets_nothing_a_queue_has_one_handler_at_a_time(seed: int) -> None:
    world = war(GentlerWorld, seed, FAILURES if seed <= WHOLE_SEEDS else 8)
    assert world.watch.wrong == []
    assert world.missing == 0
    assert world.handled > 100
