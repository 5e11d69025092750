"""Apache's controller and ours, side by side: the same requests, and the same commands of mqadmin,
end alike."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.interop.controller_questions import CLUSTER, NAME, all_answers
from tests.interop.mqadmin import Mqadmin, plain
from tests.interop.replica_groups import APACHE, OURS, ReplicaGroup
from tests.interop.tools import skipping_without_tools

COMMANDS: Final = (
    "getControllerMetaData -a $controller",
    f"getSyncStateSet -a $controller -b {NAME}",
    f"electMaster -a $controller -b 3 -bn {NAME} -c {CLUSTER}",
    f"electMaster -a $controller -b 9 -bn {NAME} -c {CLUSTER}",
    f"electMaster -a $controller -b 3 -bn none -c {CLUSTER}",
    f"getSyncStateSet -a $controller -b {NAME}",
    "updateControllerConfig -a $controller -k enableElectUncleanMaster -v true",
    "getControllerConfig -a $controller | enableElectUncleanMaster",
    "updateControllerConfig -a $controller -k configStorePath -v /tmp/x",
    f"cleanBrokerMetadata -a $controller -bn {NAME} -c {CLUSTER} -b 3",
    f"cleanBrokerMetadata -a $controller -bn {NAME} -l",
    f"getSyncStateSet -a $controller -b {NAME}",
    f"cleanBrokerMetadata -a $controller -bn {NAME} -c {CLUSTER}",
)
"""Commands, and after `` | `` what their lines are about. They run after ``all_answers``."""


def printed(mqadmin: Mqadmin, group: ReplicaGroup, command: str) -> list[str]:
    command, _, about = command.partition(" | ")
    words = command.replace("$controller", group.controller_address).split()
    names = {
        group.controller_address: "controller",
        group.namesrv_address: "namesrv",
        str(group.directory): "directory",
    }
    lines = plain(mqadmin.run(group.namesrv_address, *words), names)
    return [line for line in lines if about in line]


def test_a_controller_of_ours_answers_as_apaches(tmp_path: Path, summary: list[str]) -> None:
    started = time.monotonic()
    with skipping_without_tools(), ExitStack() as stack:
        own_name = {"controllerDLegerGroup": "controllers"}
        ours = ReplicaGroup(tmp_path / "ours", [], controller=OURS, controller_settings=own_name)
        apache = ReplicaGroup(tmp_path / "apache", [], controller=APACHE)
        groups = [stack.enter_context(ours), stack.enter_context(apache)]
        told, wanted = (asyncio.run(all_answers(one.controller_address)) for one in groups)
        different = {
            name: (told[name], wanted[name]) for name in told if told[name] != wanted[name]
        }
        assert different == {}
        mqadmin = stack.enter_context(Mqadmin(tmp_path / "mqadmin"))
        commands = {
            command: tuple(printed(mqadmin, one, command) for one in groups) for command in COMMANDS
        }
        assert {name: each for name, each in commands.items() if each[0] != each[1]} == {}
    seconds = time.monotonic() - started
    summary.append(f"controllers: {len(told)} requests, {len(COMMANDS)} commands: {seconds:.1f} s")
