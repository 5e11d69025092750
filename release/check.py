"""`make release-check`: all proofs of a release, from a fresh clone, and a table of them.

The exit status is 1 if a proof failed. A proof that this machine cannot do is named, and is not a
failure unless CI is set.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from release.building import BuildError, run
from release.newcomer import first_message, first_test, upgrade
from release.proofs import load, table
from release.pythons import ROOT, interpreters

README_LINES_MAX: Final = 110
"""A screen and a half, with the blank lines of Markdown."""
SERVICES_NEED: Final = {"dockerd": "docker.io", "iptables": "iptables", "mmdebstrap": "mmdebstrap"}
"""Commands, and the packages of Debian that have them."""
PYTEST: Final = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
Proof = Callable[[], str]


class NotHereError(Exception):
    """A proof that needs what this machine does not have."""


def make(target: str) -> str:
    return run(["make", target], cwd=ROOT)


def tests(*paths: str) -> Proof:
    """Return a proof that runs tests and gives pytest's summary."""

    def proof() -> str:
        return run([ROOT / ".venv/bin/python", *PYTEST, *paths], cwd=ROOT).splitlines()[-1]

    return proof


def wheels() -> str:
    make("wheels")
    proofs = load()
    built = sum(bool(proof.file) for proof in proofs)
    return f"{built} files built twice with equal bytes, {len(proofs)} with the workflow's"


def newcomer(trial: Callable[[Path, Path], str]) -> Proof:
    """Return a proof that is done with the compiled wheel of this machine's oldest Python."""

    def proof() -> str:
        version, python = min(interpreters().items())
        tag = "cp{}{}".format(*version)
        (wheel,) = (ROOT / "dist").glob(f"turbopump-*-{tag}-*manylinux*x86_64.whl")
        return trial(wheel, python)

    return proof


def site() -> str:
    make("docs")
    pages = list((ROOT / "out" / "site").rglob("*.html"))
    if not (ROOT / "out" / "site" / "searchindex.js").is_file():
        raise BuildError("the site has no search index")
    return f"{len(pages)} pages, no warning"


def front_page() -> str:
    text = (ROOT / "README.md").read_text("utf-8")
    lines = text.count("\n")
    if lines > README_LINES_MAX:
        raise BuildError(f"README.md has {lines} lines, more than {README_LINES_MAX}")
    missing = [
        path for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text) if not (ROOT / path).is_file()
    ]
    if missing:
        raise BuildError(f"README.md shows pictures that are not there: {', '.join(missing)}")
    return f"{lines} lines"


def version() -> str:
    """Compare the version in the metadata, the package and the changelog."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    given = pyproject["project"]["version"]
    package = re.search(
        r'^__version__ = "(.+)"', (ROOT / "src/turbopump/__init__.py").read_text(), re.M
    )
    changelog = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    found = [match[1] if match else None for match in (package, changelog)]
    if found != [given, given]:
        raise BuildError(f"pyproject.toml has {given}, the package and the changelog have {found}")
    return given


def services() -> str:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NotHereError("needs root and Debian's packages")
    if missing := [name for name in SERVICES_NEED if shutil.which(name) is None]:
        run(["apt-get", "update"])
        packages = [SERVICES_NEED[name] for name in missing]
        run(["apt-get", "install", "--yes", "--no-install-recommends", *packages])
    shown = run([ROOT / ".venv/bin/python", "-m", "deploy.check"], cwd=ROOT)
    return f"{shown.count('| ') // 2} proofs: docs/guide/containers-and-services.md"


PROOFS: Final[dict[str, Proof]] = {
    "wheels and sdist": wheels,
    "first message, in an empty environment": newcomer(first_message),
    "first test, with the pytest fixture": newcomer(first_test),
    "upgrade of a store, and back": newcomer(upgrade),
    "clients without what Windows lacks": tests("tests/unit/test_portable_clients.py"),
    "health, pings, service managers, logs": tests(
        "tests/unit/remoting/test_health_port.py",
        "tests/unit/remoting/test_http_pages.py",
        "tests/unit/broker/test_readiness.py",
        "tests/unit/cli/test_server_ping.py",
        "tests/unit/cli/test_service_manager.py",
        "tests/unit/cli/test_log_lines.py",
        "tests/crash/test_readiness.py",
    ),
    "containers and services": services,
    "documentation site": site,
    "front page": front_page,
    "examples": tests("tests/unit/test_examples.py", "tests/spark/test_examples.py"),
    "version": version,
    "workflows, metadata, changes": tests("tests/unit/release"),
}


def main() -> int:
    rows, failed = [], 0
    for what, proof in PROOFS.items():
        began = time.monotonic()
        print(f"proving: {what}", flush=True)
        try:
            shown = proof()
        except NotHereError as reason:
            failed += bool(os.environ.get("CI"))
            shown = f"not here: {reason}"
        except (BuildError, AssertionError, OSError, ValueError) as error:
            failed += 1
            shown = f"FAILED: {error}"
        rows.append((what, shown, f"{time.monotonic() - began:.0f} s"))
        print(f"  {shown}", flush=True)
    print("\n| proof | shown | took |\n|---|---|---|")
    for row in rows:
        print("| {} |".format(" | ".join(str(cell).replace("\n", " ")[:300] for cell in row)))
    if (ROOT / "out" / "wheels.json").is_file():
        print(f"\n{table(load())}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
