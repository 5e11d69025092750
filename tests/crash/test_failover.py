"""Three replicas under a controller: each kind of fault loses nothing that was acknowledged, makes
no second master, and leaves three equal logs."""

import asyncio
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash import power
from tests.crash.failover_campaign import FAULTS, Outcome, campaign

ROUNDS = 2
FROZEN_S = 8.0
"""A replica counts as dead after 3 s without a heartbeat."""
OF_A_SAMPLE = ("kill", "controller")
SAMPLE_FROZEN_S = 1.0

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="needs addresses of loopback beside 127.0.0.1"
)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_group_of_replicas_survives(
    fault: str, tmp_path: Path, rng: random.Random, full: bool, measured: Callable[[str], None]
) -> None:
    if not full and fault not in OF_A_SAMPLE:
        pytest.skip("only with --full")
    if fault.startswith("power") and power.why_not() and not os.environ.get("CI"):
        pytest.skip(f"power cut not run: {power.why_not()}")
    rounds, frozen_s = (ROUNDS, FROZEN_S) if full else (1, SAMPLE_FROZEN_S)
    outcome = Outcome(fault)
    asyncio.run(campaign(tmp_path, outcome, rounds, frozen_s=frozen_s, rng=rng))
    measured(str(outcome))
    assert outcome.violations == []
    assert outcome.rounds == rounds
    assert outcome.acknowledged
    assert outcome.changes
    if fault in ("kill", "freeze", "cut"):
        assert outcome.elections > rounds


def test_a_weaker_setting_loses_what_a_master_acknowledges_while_it_is_cut_off(
    tmp_path: Path, rng: random.Random, full: bool, measured: Callable[[str], None]
) -> None:
    """The control: were it to pass, the others had no teeth."""
    if not full:
        pytest.skip("only with --full")
    alone = {"allAckInSyncStateSet": "false", "minInSyncReplicas": 1}
    outcome = Outcome("cut")
    asyncio.run(campaign(tmp_path, outcome, 1, frozen_s=FROZEN_S, rng=rng, settings=alone))
    measured(str(outcome))
    found = {violation.split(" ", 1)[0] for violation in outcome.violations}
    assert {"lost", "lost_from_log", "two_masters", "fork"} <= found
