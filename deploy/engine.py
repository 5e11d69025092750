"""Docker for the proofs of this folder: the engine of this machine, or else a private one.

The private engine is for machines that reach no image registry. It has a stand-in of the base
image, from Debian's packages: the same release of Debian, and the same version of Python. What a
container does is unknown here.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from turbopump import __version__

ROOT: Final = Path(__file__).resolve().parent.parent
PATIENCE_S: Final = 90.0
SUITE: Final = "trixie"
"""Release of Debian under the base image, whose Python is 3.13."""
BASE: Final = "python:3.13-slim"
IMAGE: Final = f"turbopump:{__version__}"
SETTINGS: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
"""Files of this machine that its installs need."""
ADDRESS: Final = "127.0.0.2"
"""Address for published ports. Servers that run on 127.0.0.1 are left alone."""
CACHE: Final = ROOT / ".cache" / "deploy"

Row = tuple[str, str]
"""What was tried, and what was seen."""


class ProofError(Exception):
    """A proof failed. The text says what was seen instead."""


def check(seen: bool, failure: str) -> None:
    """Raise ProofError with a text unless what must be seen was seen."""
    if not seen:
        raise ProofError(failure)


def run(*command: str | Path, given: str | None = None, fails: bool = False) -> str:
    """Run a command in the checkout, and return its output.

    Raise ProofError with the end of the output unless the command succeeds. With ``fails`` the
    command must fail instead.
    """
    ended = subprocess.run(
        command, cwd=ROOT, input=given, capture_output=True, text=True, timeout=1200, check=False
    )
    if (ended.returncode != 0) != fails:
        line = " ".join(map(str, command))
        said = f"{ended.stdout}{ended.stderr}"[-2000:]
        raise ProofError(f"`{line}` ended with {ended.returncode}: {said}")
    return ended.stdout


def turbopump(*arguments: str, given: str | None = None) -> str:
    """Run a client command of the checkout on this machine, outside of all containers."""
    return run(sys.executable, "-m", "turbopump", *arguments, given=given)


def docker(*arguments: str | Path, given: str | None = None) -> str:
    return run("docker", *arguments, given=given).strip()


def compose(*arguments: str, **variables: str) -> str:
    return run("env", *map("=".join, variables.items()), *_compose_command(), *arguments)


def until(what: str, condition: Callable[[], object]) -> float:
    """Wait until a condition is true, and return the seconds. Raise ProofError after 90 s."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > PATIENCE_S:
            raise ProofError(f"{what}: not after {PATIENCE_S:.0f} s")
        time.sleep(0.1)
    return time.monotonic() - began


def until_healthy(*containers: str) -> float:
    """Wait until the health checks of all containers pass, and return the seconds."""
    states = "{{.State.Health.Status}}"
    return until(
        f"health of {', '.join(containers)}",
        lambda: set(docker("inspect", "-f", states, *containers).split()) == {"healthy"},
    )


def build_image() -> None:
    docker("build", "-f", "deploy/docker/Dockerfile", "-t", IMAGE, ".")


def megabytes(image: str) -> float:
    return int(docker("image", "inspect", "-f", "{{.Size}}", image)) / 1e6


@contextlib.contextmanager
def engine() -> Iterator[None]:
    """Let `docker` reach an engine, for the length of the block."""
    if _succeeds("docker", "version"):
        yield
        return
    _need("dockerd", "docker.io iptables")
    directory = CACHE / "engine"
    directory.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="dockerd-") as running,
        open(directory / "dockerd.log", "w") as log,
    ):
        os.environ["DOCKER_HOST"] = f"unix://{running}/docker.sock"
        places = ("--data-root", directory, "--exec-root", f"{running}/exec")
        daemon = subprocess.Popen(
            (
                "dockerd",
                *places,
                "--pidfile",
                f"{running}/pid",
                "--host",
                os.environ["DOCKER_HOST"],
            ),
            stdout=log,
            stderr=log,
        )
        try:
            until("start of dockerd", lambda: _answers(daemon))
            if not _succeeds("docker", "image", "inspect", BASE):
                docker("import", _stand_in(), BASE)
            yield
        finally:
            daemon.terminate()
            daemon.wait()
            _succeeds("umount", f"{running}/exec/netns/default")
            del os.environ["DOCKER_HOST"]


def _answers(daemon: subprocess.Popen[bytes]) -> bool:
    if daemon.poll() is not None:
        raise ProofError(f"dockerd did not start: see {CACHE / 'engine' / 'dockerd.log'}")
    return _succeeds("docker", "version")


def _stand_in() -> Path:
    """Return an archive that stands in for the base image, made once.

    Installs in it work as on this machine: with its certificates, and its settings of pip.
    """
    archive = CACHE / "base.tar"
    if not archive.exists():
        _need("mmdebstrap", "mmdebstrap")
        packages = "ca-certificates,netbase,tzdata,python3-dev,python3-venv,python3-pip"
        hooks = (
            'for name in python pip; do ln -s /usr/bin/${name}3 "$1/usr/local/bin/$name"; done',
            'rm "$1"/usr/lib/python3*/EXTERNALLY-MANAGED',
            *(f'cp {path} "$1{path}"' for path in SETTINGS if Path(path).exists()),
        )
        given = [f"--customize-hook={hook}" for hook in hooks]
        part = archive.with_suffix(".part.tar")
        run("mmdebstrap", "--variant=minbase", f"--include={packages}", *given, SUITE, part)
        part.rename(archive)
    return archive


@functools.cache
def _compose_command() -> tuple[str, ...]:
    """Return the command for Compose. A private engine gets it from Debian's packages, too."""
    if _succeeds("docker", "compose", "version"):
        return ("docker", "compose")
    directory = CACHE / "compose"
    binary = directory / "usr/libexec/docker/cli-plugins/docker-compose"
    if not binary.exists():
        _need("mmdebstrap", "mmdebstrap")
        shutil.rmtree(directory, ignore_errors=True)
        run("mmdebstrap", "--variant=extract", "--include=docker-compose", SUITE, directory)
    return (str(binary),)


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _need(command: str, packages: str) -> None:
    if shutil.which(command) is None or os.geteuid() != 0:
        raise ProofError(f"{command} is needed, and root: apt-get install {packages}")
