"""Proofs of the systemd units, installed as the guide says, in a container with systemd."""

from __future__ import annotations

import re
from collections.abc import Iterator

from deploy.engine import BASE, IMAGE, ROOT, Row, check, docker, run, until

MACHINE = "turbopump-units"
BROKER, NAME_SERVER = "turbopump-broker@a", "turbopump-namesrv"
GUIDE = ROOT / "docs/guide/containers-and-services.md"
EXPOSURE_MAX = 2.0
"""Of 10. systemd calls a level up to this one OK."""
WATCHDOG_S = 3
MESSAGES = 1000
BUILD = f"""
FROM {BASE}
RUN apt-get update && apt-get install --yes --no-install-recommends dbus systemd-sysv
COPY --from={IMAGE} /opt/turbopump /opt/turbopump
COPY . /root/deploy/systemd
WORKDIR /root
"""
# systemd has all capabilities but one that some sandboxes lack. The variable lets it run beside
# control groups of version 1.
RIGHTS = (
    *("--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE", "--security-opt", "seccomp=unconfined"),
    *("--tmpfs", "/run", "--tmpfs", "/run/lock", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup"),
    *("--env", "SYSTEMD_PROC_CMDLINE=SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"),
)


def rows() -> Iterator[Row]:
    docker("build", "-t", MACHINE, "-f", "-", "deploy/systemd", given=BUILD)
    docker("run", "--detach", "--name", MACHINE, *RIGHTS, MACHINE, "/lib/systemd/systemd")
    try:
        until(
            "start of systemd",
            lambda: _in_machine("systemctl is-active multi-user.target || :") == "active",
        )
        yield from _static()
        yield from _life()
        yield from _faults()
    finally:
        docker("rm", "--force", "--volumes", MACHINE)


def _static() -> Iterator[Row]:
    _in_machine(_installation())
    said = _in_machine(f"systemd-analyze verify {NAME_SERVER}.service {BROKER}.service 2>&1")
    check("turbopump" not in said, f"systemd-analyze verify: {said}")
    yield "systemd-analyze verify", "no complaint"
    for unit in (NAME_SERVER, BROKER):
        said = _in_machine(f"systemd-analyze security --no-pager {unit}.service")
        level = float(re.findall(r"Overall exposure level.*: ([0-9.]+)", said)[0])
        check(level <= EXPOSURE_MAX, f"the exposure level of {unit} is {level}")
        yield f"systemd-analyze security {unit}", f"exposure level {level} of 10"


def _installation() -> str:
    """Return the guide's commands, without those for the package, which is there already."""
    (block,) = re.findall(
        r"```sh\n(python3 -m venv /opt/turbopump\n.*?)```", GUIDE.read_text(), re.S
    )
    commands = [
        line for line in block.splitlines() if not re.match("python3 |/opt/|systemctl ", line)
    ]
    return "\n".join(commands)


def _life() -> Iterator[Row]:
    for unit in ("turbopump-namesrv", "turbopump-broker@"):
        shorter = f"/etc/systemd/system/{unit}.service.d"
        _in_machine(
            f"mkdir {shorter}; printf '[Service]\\nWatchdogSec={WATCHDOG_S}\\n' > {shorter}/a.conf"
        )
    _in_machine(f"systemctl daemon-reload; systemctl enable --now {NAME_SERVER} {BROKER}")
    said = [_shown(unit, "StatusText") for unit in (NAME_SERVER, BROKER)]
    check(said == ["ready", "ready"], f"the units said {said}")
    user = _in_machine(f"stat -c %U /proc/{_shown(BROKER, 'MainPID')}")
    files = _in_machine("stat -c '%U %a' /var/lib/turbopump/a /var/lib/turbopump/a/commitlog")
    check(user == "turbopump" and files[-1] == "0", f"user {user}, files {files}")
    yield "start with Type=notify", f"both units ready, user {user}"

    lines = "".join(f'{{"body": "order {number}"}}\n' for number in range(MESSAGES))
    _in_machine("/opt/turbopump/bin/turbopump produce orders", given=lines)
    _in_machine(f"systemctl stop {BROKER}")
    ended = [_shown(BROKER, name) for name in ("Result", "ExecMainStatus")]
    check(ended == ["success", "0"], f"the stop ended with {ended}")
    _in_machine(f"systemctl start {BROKER}")
    _read("readers")
    yield "systemctl stop and start", f"success, {MESSAGES} messages read"


def _faults() -> Iterator[Row]:
    _in_machine(f"kill -STOP {_shown(BROKER, 'MainPID')}")
    seconds = until("restart by the watchdog", lambda: _shown(BROKER, "NRestarts") == "1")
    until("start after the watchdog", lambda: _shown(BROKER, "ActiveState") == "active")
    _read("other-readers")
    yield (
        f"a broker that hangs, WatchdogSec={WATCHDOG_S}",
        f"restarted after {seconds:.0f} s, all messages read",
    )

    _in_machine(
        f"echo brokerRole=KING >> /etc/turbopump/a.conf; systemctl restart {BROKER}", fails=True
    )
    ended = [_shown(BROKER, name) for name in ("ActiveState", "ExecMainStatus", "NRestarts")]
    check(ended == ["failed", "2", "0"], f"a wrong configuration ended with {ended}")
    yield "a wrong configuration", "exit code 2, not started again"


def _read(group: str) -> None:
    command = f"consume orders --group '{group}' --count {MESSAGES} --idle 30"
    read = len(_in_machine(f"/opt/turbopump/bin/turbopump {command}").splitlines())
    check(read == MESSAGES, f"{read} of {MESSAGES} messages came back")


def _shown(unit: str, name: str) -> str:
    return _in_machine(f"systemctl show --property {name} --value {unit}")


def _in_machine(commands: str, *, given: str | None = None, fails: bool = False) -> str:
    shell = ("docker", "exec", "--interactive", MACHINE, "sh", "-c", f"set -e\n{commands}")
    return run(*shell, given=given, fails=fails).strip()
